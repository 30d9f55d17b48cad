"""Recurrent states of the simulated runner: every token counts once and in order, and copies are made as planned."""

from __future__ import annotations

import pytest

from ebbtide.errors import PlanError
from ebbtide.messages import MAMBA_POOL, PoolInfo, SamplingParams
from ebbtide.model_runner.sim.sim import SimRunner, SimShape
from ebbtide.plan import PageWrite, PlanItem, RowInit, StateCopies, StepPlan

GREEDY = SamplingParams(max_tokens=50, temperature=0.0)
TOKENS = [5, 6, 7, 8, 9, 10]


def runner() -> SimRunner:
    return SimRunner(SimShape(16, 4, 4, context_length=64, more_pools=(PoolInfo(6, 64, MAMBA_POOL),)))


def first_item(
    row: int, slot: int, tokens: list[int], states: StateCopies | None, *, pages: list[int], start: int = 0
) -> PlanItem:
    """The first item of a row. It gets all its pages and its slot."""
    init = RowInit(GREEDY, len(TOKENS))
    return PlanItem(row, start, tokens, pages, init=init, more_pages=(PageWrite(1, 0, [slot]),), states=states)


def sampled(sim: SimRunner, *items: PlanItem) -> list[list[int]]:
    sim.submit(StepPlan(0, list(items)))
    result = sim.collect()
    assert not result.failures
    return result.tokens


def whole(sim: SimRunner) -> list[list[int]]:
    """The first output token of the prompt, which is computed in one step."""
    return sampled(sim, first_item(0, 0, TOKENS, StateCopies(load=-1), pages=[0, 1]))


def test_chunks_and_copies_continue_the_state() -> None:
    expected = whole(runner())
    sim = runner()
    sampled(sim, first_item(0, 0, TOKENS[:4], StateCopies(load=-1, save=3), pages=[0, 1]))
    sampled(sim, PlanItem(0, 4, [1, 2]))  # the working slot moves on, and the copy does not
    assert sampled(sim, first_item(1, 1, TOKENS[4:], StateCopies(load=3), pages=[0, 2], start=4)) == expected


@pytest.mark.parametrize("load", [-1, 2])
def test_a_wrong_state_changes_the_output(load: int) -> None:
    expected = whole(runner())
    sim = runner()
    sampled(sim, first_item(0, 0, TOKENS[:4], StateCopies(load=-1, save=3), pages=[0, 1]))
    assert sampled(sim, first_item(1, 1, TOKENS[4:], StateCopies(load=load), pages=[0, 2], start=4)) != expected


def test_sources_are_read_before_slots_are_written() -> None:
    """One row takes over the slot from which another row of the same plan starts."""
    expected = whole(runner())
    sim = runner()
    sampled(sim, first_item(0, 0, TOKENS[:4], StateCopies(load=-1, save=3), pages=[0, 1]))
    others = first_item(2, 3, [1, 2], StateCopies(load=-1), pages=[4])
    assert (
        sampled(sim, others, first_item(1, 1, TOKENS[4:], StateCopies(load=3), pages=[0, 2], start=4))[1:] == expected
    )


def test_a_failed_row_leaves_the_states_of_the_others_right() -> None:
    """After an exception, the step is computed again without the row that caused it."""
    expected = whole(runner())
    sim = runner()
    bad = first_item(2, 4, [1, 2], StateCopies(load=-1), pages=[99])
    sim.submit(StepPlan(0, [first_item(0, 0, TOKENS[:4], StateCopies(load=-1), pages=[0, 1]), bad]))
    assert [failure.item for failure in sim.collect().failures] == [1]
    assert sampled(sim, PlanItem(0, 4, TOKENS[4:])) == expected


@pytest.mark.parametrize(
    ("slot", "states"),
    [(6, StateCopies(load=-1)), (0, StateCopies(load=9)), (0, StateCopies(load=-1, save=6)), (0, None)],
)
def test_an_invalid_slot_fails_its_row(slot: int, states: StateCopies | None) -> None:
    sim = runner()
    sim.submit(StepPlan(0, [first_item(0, slot, TOKENS, states, pages=[0, 1])]))
    (failure,) = sim.collect().failures
    assert PlanError.__name__ in failure.problem or "slot" in failure.problem or "state" in failure.problem
