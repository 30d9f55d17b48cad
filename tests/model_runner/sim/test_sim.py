"""The simulated runner: its samples depend on every slot to which the page table refers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ebbtide.config import RunnerConfig
from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import PoolInfo, SamplingParams
from ebbtide.model_runner import build_runner
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.model_runner.sim.sim_script import SimScript
from ebbtide.plan import PageCopies, PageWrite, PlanItem, PromptLogprobSpec, RowInit, StepPlan, StepResult
from ebbtide.progress import no_progress
from ebbtide.tokenization.model_files import ModelFiles
from ebbtide.tokenization.vocabulary import SIM_EOS

GREEDY = SamplingParams(max_tokens=10, temperature=0.0)
PROMPT = list(b"a prompt of some pages")


def runner(**options: object) -> SimRunner:
    return SimRunner(SimShape(num_pages=32, page_size=4, num_rows=4, context_length=64), **options)  # type: ignore[arg-type]


def step(sim: SimRunner, *items: PlanItem) -> StepResult:
    sim.submit(StepPlan(0, list(items)))
    return sim.collect()


def prefill(
    row: int, pages: list[int], tokens: list[int], sampling: SamplingParams = GREEDY, *, known: list[int] | None = None
) -> PlanItem:
    init = RowInit(sampling, len(tokens), known or [])
    return PlanItem(row, 0, tokens, pages, 0, True, init)


def first_token(sim: SimRunner, pages: list[int], tokens: list[int], sampling: SamplingParams = GREEDY) -> int:
    return step(sim, prefill(0, pages, tokens, sampling)).tokens[0][0]


def test_the_same_context_gives_the_same_token_on_any_pages() -> None:
    assert first_token(runner(), [0, 1, 2, 3, 4, 5], PROMPT) == first_token(runner(), [9, 3, 30, 7, 8, 1], PROMPT)


def test_chunks_give_what_one_prefill_gives() -> None:
    sim = runner()
    step(sim, PlanItem(1, 0, PROMPT[:7], [5, 6], 0, False, RowInit(GREEDY, len(PROMPT))))
    chunked = step(sim, PlanItem(1, 7, PROMPT[7:], [8, 9, 10, 11], 2)).tokens
    assert chunked == [[first_token(runner(), [0, 1, 2, 3, 4, 5], PROMPT)]]


def test_a_row_continues_with_its_own_last_sample() -> None:
    told, untold = runner(), runner()
    token = first_token(told, list(range(6)), PROMPT)
    first_token(untold, list(range(6)), PROMPT)
    assert step(told, PlanItem(0, len(PROMPT), [token])).tokens == step(untold, PlanItem(0, len(PROMPT), None)).tokens


def two_pools(window: int | None) -> SimRunner:
    second = PoolInfo(32, 2, "second", window)
    return SimRunner(SimShape(num_pages=32, page_size=4, num_rows=4, context_length=64, more_pools=(second,)))


def tokens_with(sim: SimRunner, pages: list[int], *, poisoned: list[int] | None = None) -> list[list[int]]:
    """Two tokens after 22 prompt tokens, with ``pages`` of 2 tokens in the second pool."""
    first = replace(prefill(0, list(range(6)), PROMPT), more_pages=(PageWrite(1, 0, pages),))
    sampled = step(sim, first).tokens
    sim.poison(poisoned or [], pool=1)
    sampled += step(sim, PlanItem(0, 22, None, more_pages=(PageWrite(1, 11, [31]),))).tokens
    return sampled


@pytest.mark.parametrize("window", [None, 5])
def test_the_second_pool_changes_the_text_where_it_is_read(window: int | None) -> None:
    expected = tokens_with(two_pools(window), list(range(11)))
    assert tokens_with(two_pools(window), list(range(20, 9, -1))) == expected  # wherever its pages are
    for page in range(11):
        read = window is None or page >= 9  # the second token reads positions 18 to 22
        assert (tokens_with(two_pools(window), list(range(11)), poisoned=[page]) != expected) is read, page
    short = replace(prefill(0, list(range(6)), PROMPT), more_pages=(PageWrite(1, 0, list(range(10))),))
    [failure] = step(two_pools(window), short).failures
    assert "position 21 has no page" in failure.problem


@pytest.mark.parametrize("window", [None, 1, 4, 9, 50])
def test_prompt_logprobs_read_the_second_pool_as_sampling_does(window: int | None) -> None:
    """The contexts of the targets are the same if the prompt is computed in one chunk or token by token."""
    whole, single = two_pools(window), two_pools(window)
    scored = GREEDY
    first = replace(prefill(0, list(range(6)), PROMPT, scored), more_pages=(PageWrite(1, 0, list(range(11))),))
    spec = PromptLogprobSpec(7, PROMPT[8:22], 0)
    (together,) = step(whole, replace(first, prompt_logprobs=spec)).prompt_logprobs
    apart = []
    for position, token in enumerate(PROMPT[:21]):
        spec = PromptLogprobSpec(0, PROMPT[position + 1 : position + 2], 0)
        item = replace(first, start=position, tokens=[token], prompt_logprobs=spec)
        apart += step(single, item).prompt_logprobs[0]
    assert together == apart[7:]


@pytest.mark.parametrize("page", range(6))
def test_an_overwritten_page_anywhere_in_the_context_changes_the_text(page: int) -> None:
    good, bad = runner(), runner()
    answers = []
    for sim in (good, bad):
        first_token(sim, list(range(6)), PROMPT)
        if sim is bad:
            sim.poison([page])
        start = len(PROMPT)
        answers.append(
            [
                step(sim, PlanItem(0, start + index, None, [20] if start + index == 24 else [], 6)).tokens
                for index in range(4)
            ]
        )
    assert answers[0] != answers[1]


def test_pages_in_another_order_change_the_text() -> None:
    """The same tokens, but two pages of the table are swapped after they were written."""
    straight, crossed = runner(), runner()
    for sim in (straight, crossed):
        step(sim, PlanItem(0, 0, PROMPT, list(range(6)), 0, False, RowInit(GREEDY, len(PROMPT))))
    pages = [0, 2, 1, 3, 4, 5]
    assert step(straight, PlanItem(0, 22, [65])).tokens != step(crossed, PlanItem(0, 22, [65], pages, 0)).tokens


def test_a_row_keeps_no_state_of_its_previous_request() -> None:
    sim = runner()
    penalized = SamplingParams(max_tokens=10, temperature=0.0, presence_penalty=2.0)
    step(sim, prefill(0, list(range(6)), PROMPT, penalized, known=PROMPT))
    assert first_token(sim, list(range(6, 12)), PROMPT) == first_token(runner(), list(range(6)), PROMPT)


@pytest.mark.parametrize(
    "item",
    [
        PlanItem(7, 0, [1], [0], 0, True, RowInit(GREEDY, 1)),
        PlanItem(0, 0, [1], [99], 0, True, RowInit(GREEDY, 1)),
        PlanItem(0, 0, [1], [0], 40, True, RowInit(GREEDY, 1)),
        PlanItem(0, 4, [1], [0], 0, True, RowInit(GREEDY, 5)),
        PlanItem(0, 0, [1], [0]),
    ],
    ids=["row", "page", "table", "no page there", "no sampling state"],
)
def test_an_item_that_reaches_outside_is_refused(item: PlanItem) -> None:
    result = step(runner(), item)
    assert result.tokens == [[]]
    assert [(failure.item, failure.invalid_logits) for failure in result.failures] == [(0, False)]
    assert "row" in result.failures[0].problem


def test_a_draw_depends_on_the_seed_and_the_index() -> None:
    def drawn(seed: int) -> list[int]:
        sim = runner()
        sampling = SamplingParams(max_tokens=10, temperature=1.5, seed=seed)
        tokens = [first_token(sim, list(range(6)), PROMPT, sampling)]
        for index in range(5):
            pages = [20] if len(PROMPT) + index == 24 else []
            tokens += step(sim, PlanItem(0, len(PROMPT) + index, None, pages, 6)).tokens[0]
        return tokens

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(10)}) == 10


def test_bias_bans_and_forces() -> None:
    greedy = first_token(runner(), list(range(6)), PROMPT)
    banned = SamplingParams(max_tokens=10, temperature=0.0, logit_bias={greedy: -100.0})
    assert first_token(runner(), list(range(6)), PROMPT, banned) != greedy
    forced = SamplingParams(max_tokens=10, temperature=1.0, logit_bias={200: 100.0})
    assert first_token(runner(), list(range(6)), PROMPT, forced) == 200


def test_logprobs_are_those_of_a_distribution_and_the_greedy_token_leads() -> None:
    sampling = SamplingParams(max_tokens=10, temperature=0.0, logprobs=260)
    result = step(runner(), prefill(0, list(range(6)), PROMPT, sampling))
    assert result.logprobs is not None
    (entries,) = result.logprobs
    assert entries is not None
    (entry,) = entries
    assert [entry.top_ids[0]] == result.tokens[0]
    assert entry.logprob == entry.top_logprobs[0]
    assert sum(2.718281828459045**value for value in entry.top_logprobs) == pytest.approx(1.0)


@pytest.mark.parametrize("restriction", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_a_narrow_choice_is_greedy(restriction: dict[str, float]) -> None:
    greedy = first_token(runner(), list(range(6)), PROMPT)
    for seed in range(10):
        sampling = SamplingParams(max_tokens=10, temperature=2.0, seed=seed, **restriction)  # type: ignore[arg-type]
        assert first_token(runner(), list(range(6)), PROMPT, sampling) == greedy


def test_a_script_decides_the_bytes_and_then_ends(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"a prompt": [240, 159], "a": "no", "b": "x"}))
    sim = SimRunner.from_config(
        RunnerConfig(page_size=4, max_total_tokens=128, context_length=64, sim_script=str(path))
    )
    tokens = [first_token(sim, list(range(6)), [*PROMPT[:8], 258])]
    tokens += step(sim, PlanItem(0, 9, None)).tokens[0] + step(sim, PlanItem(0, 10, None)).tokens[0]
    assert tokens == [240, 159, SIM_EOS]
    assert sim.info.num_pages == 32


def test_the_longest_matching_prefix_of_a_script_decides() -> None:
    script = SimScript({b"a": b"short", b"abc": b"long"})
    assert script.output_for(list(b"abcd")) == b"long"
    assert script.output_for(list(b"abd")) == b"short"
    assert script.output_for(list(b"b")) == b""


def test_a_script_may_look_for_texts_in_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    rules = [
        {"contains": ["b", "d"], "output": "both"},
        {"contains": ["d"], "output": [1]},
        {"contains": [], "output": "x"},
    ]
    path.write_text(json.dumps(rules))
    script = SimScript.load(str(path))
    assert [script.output_for(list(text)) for text in (b"abcd", b"acd", b"a")] == [b"both", b"\x01", b"x"]
    assert script


@pytest.mark.parametrize(
    "content",
    ["[]", "[3]", '[{"output": "a"}]', '[{"contains": [3], "output": "a"}]', '{"a": 3}', '{"a": [300]}', "{", None],
)
def test_a_bad_script_is_one_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "script.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(StartupError, match="--sim-script"):
        SimScript.load(str(path))


def host_runner(num_host_pages: int = 8) -> SimRunner:
    return SimRunner(SimShape(num_pages=32, page_size=4, num_rows=4, context_length=64, num_host_pages=num_host_pages))


def copy(sim: SimRunner, to_host: list[int], to_device: list[int], *items: PlanItem) -> StepResult:
    sim.submit(StepPlan(0, list(items), PageCopies(to_host, to_device)))
    return sim.collect()


def resumed(pages: list[int]) -> PlanItem:
    """Admit the row again with other pages, and compute its last known token."""
    return PlanItem(2, len(PROMPT), [65], pages, 0, True, RowInit(GREEDY, len(PROMPT)))


def test_restored_host_pages_equal_the_computed_pages() -> None:
    straight, moved = host_runner(), host_runner()
    for sim in (straight, moved):
        first_token(sim, list(range(6)), PROMPT)
    result = copy(moved, [page for pair in zip(range(6), (7, 0, 5, 1, 6, 2), strict=True) for page in pair], [])
    assert (result.tokens, result.logprobs) == ([], None)
    moved.poison(range(6))
    back = [page for pair in zip((7, 0, 5, 1, 6, 2), range(20, 26), strict=True) for page in pair]
    told = step(straight, PlanItem(0, len(PROMPT), [65])).tokens
    assert copy(moved, [], back, resumed(list(range(20, 26)))).tokens == told


@pytest.mark.parametrize("lost", range(6))
def test_a_host_page_that_was_overwritten_or_never_written_changes_the_text(lost: int) -> None:
    sim, straight = host_runner(), host_runner()
    for each in (sim, straight):
        first_token(each, list(range(6)), PROMPT)
    told = step(straight, PlanItem(0, len(PROMPT), [65])).tokens
    there = [page for number in range(6) for page in (number, number) if number != lost]
    back = [page for number in range(6) for page in (number, number + 20)]
    copy(sim, there, [])
    assert copy(sim, [], back, resumed(list(range(20, 26)))).tokens != told, "never written"
    copy(sim, [lost, lost], [])
    sim.poison_host([lost])
    assert copy(sim, [], back, resumed(list(range(20, 26)))).tokens != told, "spoiled"


def test_copies_precede_writes_and_copies_to_the_host_precede_copies_back() -> None:
    """One plan saves a page, restores it elsewhere, and lets another row overwrite the old page."""
    sim, straight = host_runner(), host_runner()
    for each in (sim, straight):
        first_token(each, list(range(6)), PROMPT)
    told = step(straight, PlanItem(0, len(PROMPT), [65])).tokens
    other = PlanItem(1, 0, [66, 67], [0], 0, False, RowInit(GREEDY, 3))
    back = resumed([30, 1, 2, 3, 4, 5])
    assert copy(sim, [0, 3], [3, 30], other, back).tokens == told


@pytest.mark.parametrize(
    ("to_host", "to_device"),
    [
        ([32, 0], []),
        ([-1, 0], []),
        ([0, 8], []),
        ([0, -1], []),
        ([], [8, 0]),
        ([], [0, 32]),
        ([0], []),
        ([], [0, 1, 2]),
    ],
)
def test_copies_that_reach_outside_are_refused_before_any_is_made(to_host: list[int], to_device: list[int]) -> None:
    sim, straight = host_runner(), host_runner()
    for each in (sim, straight):
        first_token(each, list(range(6)), PROMPT)
    with pytest.raises(PlanError, match="cop"):
        copy(sim, to_host, [7, 1, *to_device] if to_device else [])
    assert step(sim, PlanItem(0, len(PROMPT), [65])) == step(straight, PlanItem(0, len(PROMPT), [65]))


def test_of_two_copies_onto_one_page_the_later_one_counts() -> None:
    """A request may end before the plan that saves it is made; its host page then belongs to another request."""
    sim, straight = host_runner(), host_runner()
    for each in (sim, straight):
        first_token(each, list(range(6)), PROMPT)
    told = step(straight, PlanItem(0, len(PROMPT), [65])).tokens
    assert copy(sim, [31, 3, 0, 3], [7, 30, 3, 30], resumed([30, 1, 2, 3, 4, 5])).tokens == told


def test_without_a_host_tier_copies_are_refused_and_the_size_is_zero() -> None:
    sim = host_runner(0)
    assert (sim.info.num_host_pages, sim.info.recompute_token_s, sim.info.restore_token_s) == (0, 0.0, 0.0)
    with pytest.raises(PlanError):
        copy(sim, [0, 0], [])


def test_the_flag_sizes_the_host_tier() -> None:
    config = RunnerConfig(page_size=16, kv_offload_gb=0.5)
    info = SimRunner.from_config(config).info
    assert info.num_host_pages == 512, "8,192 tokens of 64 KiB"
    assert 0 < info.restore_token_s < info.recompute_token_s


def test_sizes_that_do_not_fit_into_memory_are_one_sentence() -> None:
    config = RunnerConfig(max_running_requests=1 << 20, context_length=(1 << 31) - 1)
    with pytest.raises(StartupError, match="does not fit into memory: choose smaller numbers for --max-running"):
        SimRunner.from_config(config)


def test_a_pool_smaller_than_a_page_is_one_sentence() -> None:
    with pytest.raises(StartupError, match="--max-total-tokens 8 is less than one page of 16 tokens"):
        build_runner(ModelFiles("sim"), RunnerConfig(max_total_tokens=8), no_progress)


def mask_of(*allowed: int, size: int = 260) -> bytes:
    bits = bytearray(-(-size // 8))
    for token in allowed:
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_allows_only_its_tokens(temperature: float) -> None:
    seen = set()
    for index in range(100):
        sim = runner()
        sampling = SamplingParams(max_tokens=10, temperature=temperature, seed=index)
        item = prefill(0, list(range(6)), [*PROMPT[:-1], index], sampling)
        seen.add(step(sim, replace(item, mask=mask_of(7, 200, 259))).tokens[0][0])
    assert seen <= {7, 200, 259}
    assert len(seen) == 3 or temperature == 0.0


def test_a_mask_of_too_few_ids_is_refused() -> None:
    [failure] = step(runner(), replace(prefill(0, list(range(6)), PROMPT), mask=b"\xff")).failures
    assert "a mask has 8 bits for 260" in failure.problem


def test_a_mask_without_tokens_gives_no_token() -> None:
    assert step(runner(), replace(prefill(0, list(range(6)), PROMPT), mask=mask_of())).tokens == [[]]


def test_a_mask_has_priority_over_a_ban() -> None:
    sampling = SamplingParams(max_tokens=10, temperature=0.0, logit_bias={7: -100.0, 200: 100.0})
    item = replace(prefill(0, list(range(6)), PROMPT, sampling), mask=mask_of(7))
    assert step(runner(), item).tokens == [[7]]


def test_a_script_is_followed_as_far_as_the_mask_allows() -> None:
    sim = SimRunner(SimShape(num_pages=8, page_size=4, num_rows=1), script=SimScript({bytes(PROMPT): b"ab"}))
    item = prefill(0, list(range(6)), PROMPT)
    assert step(sim, replace(item, mask=mask_of(ord("a"), 7))).tokens == [[ord("a")]]
    assert step(sim, replace(item, mask=mask_of(7))).tokens == [[7]]


def test_a_layout_gives_the_window_pool_its_share_of_the_pages() -> None:
    config = RunnerConfig(page_size=4, max_total_tokens=400, context_length=64, sim_pools="full,swa:20")
    sim = SimRunner.from_config(config)
    assert sim.info.pools == (PoolInfo(100, 4), PoolInfo(20, 4, "swa", 20))
    small = SimRunner.from_config(dataclasses.replace(config, swa_full_tokens_ratio=0.01))
    assert small.info.pools[1].num_pages == 11


def test_a_layout_gives_the_state_pool_its_slots() -> None:
    config = RunnerConfig(page_size=4, max_total_tokens=400, context_length=64, sim_pools="full,swa:20,mamba:8")
    assert SimRunner.from_config(config).info.pools[2] == PoolInfo(8, 64, "mamba")


INVALID = ["", "swa:64", "full,full", "full,swa", "full,swa:0", "full,swa:-1", "full,swa:6,x", "full,mamba:8,swa:6"]


@pytest.mark.parametrize("layout", [*INVALID, "full,mamba:", "full,mamba:0"])
def test_an_invalid_layout_is_refused(layout: str) -> None:
    with pytest.raises(StartupError, match="--sim-pools"):
        SimRunner.from_config(RunnerConfig(page_size=4, max_total_tokens=128, context_length=64, sim_pools=layout))
