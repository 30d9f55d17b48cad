"""Models with recurrent layers: the scheduler with its pool of states, the real runner, and transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from ebbtide.config import SchedulerConfig
from ebbtide.errors import PlanError
from ebbtide.messages import MAMBA_POOL, GenerateReq, OpenSessionReq, SamplingParams, SessionTurn
from ebbtide.model_runner.kv.state_memory import StateMemory, StateShape
from ebbtide.plan import PageWrite, PlanItem, RowInit, StateCopies

from .driver import load_runner
from .families import VOCAB_SIZE
from .poisoned_load import PoisonedLoad, serve
from .reference import greedy, load_reference

NUM_TOKENS = 12
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
PAGE = 8
FAMILIES = ("lfm2", "falcon_h1")
Truth = tuple[list[list[int]], list[list[int]]]


def random_prompts() -> list[list[int]]:
    """16 prompts, shorter and longer than a page and a chunk. Half of them begin alike."""
    generator = torch.Generator().manual_seed(12)
    lengths = [1, 2, 3, 5, 8, 9, 16, 20, 33, 50, 64, 75, 90, 17, 41, 120]
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
    for index in range(7, 15):
        prompts[index][:16] = prompts[15][:16]
    return prompts


@pytest.fixture(scope="module")
def truth(tiny: Callable[[str], Path]) -> Callable[[str], Truth]:
    """Prompts, and the output of transformers for each."""
    known: dict[str, Truth] = {}

    def of(family: str) -> Truth:
        if family not in known:
            model, prompts = load_reference(tiny(family)), random_prompts()
            known[family] = prompts, [greedy(model, prompt, NUM_TOKENS) for prompt in prompts]
        return known[family]

    return of


def config(**options: object) -> SchedulerConfig:
    defaults = {"chunked_prefill_size": 20, "memory_check": "strict", "state_checkpoint_interval": PAGE}
    return SchedulerConfig(**(defaults | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"disable_radix_cache": True}, {"test_retract_interval": 1}, {"chunked_prefill_size": 3}],
    ids=["cache", "no cache", "a retraction in every step", "short chunks"],
)
def test_a_batch_gives_the_output_of_transformers(
    family: str, options: dict[str, object], tiny: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    prompts, expected = truth(family)
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=2048)
    outputs, load = serve(runner, config(**options), prompts, GREEDY)
    assert outputs == expected
    assert (load.num_cached > 0) is ("disable_radix_cache" not in options)
    assert (load.num_retractions > 20) is ("test_retract_interval" in options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_states", [1, 3, 12])
def test_few_states_and_pages_change_no_output(
    max_states: int, family: str, tiny: Callable[[str], Path], truth: Callable[[str], Truth]
) -> None:
    prompts, expected = truth(family)
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=400, max_states=max_states)
    assert runner.info.pools[-1].num_pages == max_states
    outputs, load = serve(runner, config(retraction_risk=0.999), prompts, GREEDY)
    assert outputs == expected
    assert load.num_freed[MAMBA_POOL] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_of_a_session_give_the_output_of_the_whole_conversation(family: str, tiny: Callable[[str], Path]) -> None:
    model = load_reference(tiny(family))
    runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=1024)
    load = PoisonedLoad(runner, config(enable_streaming_session=True))
    load.run(OpenSessionReq("call", "s", streaming=True))
    params = msgspec.structs.replace(GREEDY, max_tokens=4)
    conversation: list[int] = []
    for turn in range(20):
        prompt = [(turn * 37 + place * 11) % 500 + 3 for place in range(1 + turn * 5 % 13)]
        load.run(GenerateReq((str(turn),), prompt, params, session=SessionTurn("s")))
        conversation += prompt
        assert load.tokens[str(turn)] == greedy(model, conversation, 4)
        conversation += load.tokens[str(turn)]
    assert load.num_cached > len(conversation)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_of_a_prompt_do_not_depend_on_the_chunks(family: str, tiny: Callable[[str], Path]) -> None:
    prompt = random_prompts()[-1][:60]
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    logprobs = []
    for chunk in (7, 100):
        runner = load_runner(tiny(family), page_size=PAGE, max_total_tokens=1024)
        load = PoisonedLoad(runner, config(chunked_prefill_size=chunk))
        load.run(GenerateReq(("a",), prompt, params))
        logprobs.append([one.logprob for one in load.prompt_logprobs["a"]])
    assert len(logprobs[0]) == len(prompt) - 1
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_stays_close_to_float32(family: str, tiny: Callable[[str], Path]) -> None:
    prompt = random_prompts()[-1][:60]
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    logprobs = []
    for dtype in ("float32", "bfloat16"):
        load = PoisonedLoad(load_runner(tiny(family), dtype=dtype, page_size=PAGE, max_total_tokens=1024), config())
        load.run(GenerateReq(("a",), prompt, params))
        logprobs.append(torch.tensor([one.logprob for one in load.prompt_logprobs["a"]]))
    assert (logprobs[0] - logprobs[1]).abs().mean() < 0.1 * logprobs[0].std()


def item(row: int, slot: int | None, states: StateCopies | None) -> PlanItem:
    more = () if slot is None else (PageWrite(1, 0, [slot]),)
    return PlanItem(row, 0, [5], [0], init=RowInit(GREEDY, 1), more_pages=more, states=states)


@pytest.mark.parametrize(
    "bad",
    [
        item(0, None, StateCopies(load=-1)),
        item(0, 0, None),
        item(0, 0, StateCopies(load=None)),
        item(0, 4, StateCopies(load=-1)),
        item(0, 0, StateCopies(load=4)),
        item(0, 0, StateCopies(load=-1, save=4)),
        item(0, 0, StateCopies(load=-2)),
        PlanItem(1, 3, None),
    ],
)
def test_an_invalid_slot_is_refused(bad: PlanItem) -> None:
    memory = StateMemory(StateShape(1, (2,)), 4, 2, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(PlanError):
        memory.stage([bad], 1)


def test_sources_are_read_before_slots_are_written() -> None:
    """One item takes over the slot from which another item continues."""
    memory = StateMemory(StateShape(1, (2,)), 4, 2, dtype=torch.float32, device=torch.device("cpu"))
    memory.data[0, :4] = torch.arange(4.0)[:, None]
    states = memory.batch(memory.stage([item(0, 3, StateCopies(load=-1, save=1)), item(1, 2, StateCopies(load=3))], 1))
    states.advance(states.before() + 10)
    memory.commit(states)
    assert memory.data[0, :, 0].tolist() == [0, 10, 13, 10, 0]
