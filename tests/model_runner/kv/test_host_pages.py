"""K/V pages in host memory: they return bit-identical, their costs are measured, their memory is allocated at start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import SamplingParams
from ebbtide.model_runner.kv.copy_costs import measure_costs
from ebbtide.model_runner.kv.host_pages import GIB, num_host_pages
from ebbtide.model_runner.runner import ModelRunner
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.plan import PageCopies, PlanItem, RowInit, StepPlan, StepResult

from ..driver import load_runner

# All logprobs of the tiny vocabularies are compared, so equal results mean equal logits.
SAMPLING = SamplingParams(max_tokens=8, temperature=0.0, logprobs=20)
PROMPT = [3 + place * 37 % 500 for place in range(41)]
MIB = 1 << 20


def step(runner: ModelRunner | SimRunner, *items: PlanItem, copies: PageCopies | None = None) -> StepResult:
    runner.submit(StepPlan(0, list(items), copies))
    return runner.collect()


def pairs(sources: list[int], targets: list[int]) -> list[int]:
    return [page for pair in zip(sources, targets, strict=True) for page in pair]


def prefill(runner: ModelRunner, row: int, prompt: list[int], pages: list[int]) -> StepResult:
    return step(runner, PlanItem(row, 0, prompt, pages, 0, True, RowInit(SAMPLING, len(prompt), prompt)))


def decode(runner: ModelRunner, row: int, pages: list[int], first: int, init: RowInit | None) -> list[StepResult]:
    """The first item has a token and pages; the others use the row's own last sample."""
    start = len(PROMPT)
    results = [step(runner, PlanItem(row, start, [first], pages, 0, True, init))]
    return results + [step(runner, PlanItem(row, start + number, None)) for number in range(1, 6)]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dtype": "float32", "attention_backend": "torch"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "attention_backend": "torch"},
        {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    ],
    ids=str,
)
def test_a_request_restored_from_the_host_continues_bit_for_bit(
    options: dict[str, str], tiny: Callable[[str], Path]
) -> None:
    here, there, elsewhere = [9, 2, 30, 4, 11, 6], [7, 0, 5, 1, 6, 2], [20, 41, 22, 3, 24, 15]
    runner = load_runner(tiny("llama"), page_size=8, kv_offload_gb=1 / 1024, **options)
    first = prefill(runner, 0, PROMPT, here).tokens[0][0]
    expected = decode(runner, 0, here, first, None)
    prefill(runner, 0, PROMPT, here)
    saved = step(runner, copies=PageCopies(to_host=pairs(here, there)))
    assert (saved.tokens, saved.logprobs) == ([], None)
    prefill(runner, 1, PROMPT[::-1], here)  # the pages now belong to another request
    back = PageCopies(to_device=pairs(there, elsewhere))
    start = len(PROMPT)
    init = RowInit(SAMPLING, start, [*PROMPT, first])
    runner.submit(StepPlan(1, [PlanItem(2, start, [first], elsewhere, 0, True, init)], back))
    results = [runner.collect()] + [step(runner, PlanItem(2, start + number, None)) for number in range(1, 6)]
    assert [one.tokens for one in results] == [one.tokens for one in expected]
    assert [one.logprobs for one in results] == [one.logprobs for one in expected]


def test_copies_are_made_before_the_writes_of_their_plan(tiny: Callable[[str], Path]) -> None:
    """One plan saves pages, lets another row overwrite them, and restores the saved ones elsewhere."""
    here, there, elsewhere = [0, 1, 2], [2, 0, 1], [10, 11, 12]
    runner = load_runner(tiny("llama"), kv_offload_gb=1 / 1024)
    first = prefill(runner, 0, PROMPT, here).tokens[0][0]
    expected = decode(runner, 0, here, first, None)
    prefill(runner, 0, PROMPT, here)
    other = PlanItem(1, 0, PROMPT[::-1], here, 0, False, RowInit(SAMPLING, 50, PROMPT))
    step(runner, other, copies=PageCopies(pairs(here, there), pairs(there, elsewhere)))
    assert decode(runner, 2, elsewhere, first, RowInit(SAMPLING, len(PROMPT), [*PROMPT, first])) == expected


def test_of_two_copies_onto_one_page_the_later_one_counts(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"), kv_offload_gb=1 / 1024)
    first = prefill(runner, 0, PROMPT, [0, 1, 2]).tokens[0][0]
    expected = decode(runner, 0, [0, 1, 2], first, None)
    prefill(runner, 0, PROMPT, [0, 1, 2])
    step(runner, copies=PageCopies([5, 3, 0, 3], [0, 10, 3, 10]))
    init = RowInit(SAMPLING, len(PROMPT), [*PROMPT, first])
    assert decode(runner, 1, [10, 1, 2], first, init) == expected


def test_a_refused_copy_changes_nothing(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"), kv_offload_gb=1 / 1024)
    first = prefill(runner, 0, PROMPT, [0, 1, 2]).tokens[0][0]
    expected = decode(runner, 0, [0, 1, 2], first, None)
    num_pages, num_host_pages = runner.info.num_pages, runner.info.num_host_pages
    prefill(runner, 0, PROMPT, [0, 1, 2])
    for copies in (
        PageCopies(to_host=[num_pages, 0]),
        PageCopies(to_host=[0, num_host_pages]),
        PageCopies(to_host=[0]),
        PageCopies(to_device=[0, 0, num_host_pages, 1]),
        PageCopies(to_device=[0, 0, 1, num_pages]),
    ):
        with pytest.raises(PlanError, match="cop"):
            step(runner, copies=copies)
    assert decode(runner, 0, [0, 1, 2], first, None) == expected


def test_without_the_flag_there_is_no_host_tier_and_no_cost(tiny: Callable[[str], Path]) -> None:
    runner = load_runner(tiny("llama"))
    assert (runner.info.num_host_pages, runner.info.recompute_token_s, runner.info.restore_token_s) == (0, 0.0, 0.0)
    with pytest.raises(PlanError, match="is out of range"):
        step(runner, copies=PageCopies(to_host=[0, 0]))


def test_the_flag_sets_the_size_of_the_host_tier_and_both_costs_are_measured(tiny: Callable[[str], Path]) -> None:
    info = load_runner(tiny("llama"), kv_offload_gb=0.01).info
    page = info.pool_bytes // info.num_pages
    assert info.num_host_pages == int(0.01 * GIB) // page
    assert 0 < info.restore_token_s < 1
    assert 0 < info.recompute_token_s < 1


def test_a_tiny_pool_can_be_measured_too(tiny: Callable[[str], Path]) -> None:
    info = load_runner(tiny("llama"), kv_offload_gb=1 / 1024, max_total_tokens=16).info
    assert info.num_pages == 1
    assert info.recompute_token_s > 0


def test_more_host_memory_than_there_is_is_one_sentence(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(StartupError, match="--kv-offload-gb 1000000 does not fit"):
        load_runner(tiny("llama"), kv_offload_gb=1e6)


def test_the_size_of_the_tier_is_whole_pages_within_the_free_memory() -> None:
    assert num_host_pages(0.0, MIB, 0) == 0
    assert num_host_pages(1.5, MIB, 10 * GIB) == 1536
    assert num_host_pages(9.0, MIB, 10 * GIB) == 9216
    with pytest.raises(StartupError, match=r"10\.00 GiB of host memory are free"):
        num_host_pages(9.1, MIB, 10 * GIB)
    with pytest.raises(StartupError, match="less than one page"):
        num_host_pages(0.0001, MIB, 10 * GIB)


def test_costs_are_seconds_per_token_without_the_warm_up() -> None:
    sim = SimRunner(SimShape(num_pages=200, page_size=4, num_rows=1, context_length=512, num_host_pages=100))
    times = iter([0.0, 50.0, 100.0, 100.512, 300.0, 300.8])
    costs = measure_costs(sim, lambda: next(times))
    assert costs.recompute_token_s == pytest.approx(0.002), "256 tokens in 0.512 s"
    assert costs.restore_token_s == pytest.approx(0.002), "100 pages of 4 tokens, there and back, in 0.8 s"
