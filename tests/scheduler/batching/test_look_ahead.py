"""When memory is short, rows wait for requests that end soon instead of being retracted. Pages of 4 tokens."""

from __future__ import annotations

import pytest

from ..session_world import alone
from ..world import Shape, World, greedy, text

LONG, SHORT = greedy(40, ignore_eos=True), greedy(22, ignore_eos=True)


def world_of(**changes: object) -> World:
    """Two requests that start together. When the pool is full, the shorter one has one token left."""
    world = World(Shape(num_pages=14, page_size=4, num_rows=4, conservativeness=0.001, **changes))  # type: ignore[arg-type]
    world.generate("long", text("l" * 8), LONG)  # needs its eighth page for output 21
    world.generate("short", text("s" * 6), SHORT)
    return world


@pytest.mark.parametrize("overlap", [1, 2])
def test_no_request_is_retracted_if_another_ends_soon(overlap: int) -> None:
    world = world_of(overlap=overlap)
    outcomes = world.run()
    totals = world.scheduler.state.metrics.totals
    assert totals["num_retracted_requests_total"] == 0
    assert totals["num_delayed_rows_total"] > 0
    assert outcomes["long"].tokens == alone(text("l" * 8), LONG)
    assert outcomes["short"].tokens == alone(text("s" * 6), SHORT)


def test_no_request_starts_while_rows_wait() -> None:
    world = world_of()
    totals = world.scheduler.state.metrics.totals
    while not totals["num_delayed_rows_total"]:
        world.step()
    world.generate("late", text("z"), greedy(1, ignore_eos=True))
    before = totals["num_delayed_rows_total"]
    world.step()
    while totals["num_delayed_rows_total"] > before:
        assert [req.rid for req in world.scheduler.state.waiting] == ["late"]
        before = totals["num_delayed_rows_total"]
        world.step()
    world.run()
    assert world.outcomes["late"].finish == "length"


def test_a_request_is_retracted_if_no_other_ends_soon() -> None:
    world = World(Shape(num_pages=15, page_size=4, num_rows=4, conservativeness=0.001))
    for rid in "ab":
        world.generate(rid, text(rid * 8), greedy(50, ignore_eos=True))
    outcomes = world.run()
    assert world.scheduler.state.metrics.totals["num_retracted_requests_total"] > 0
    for rid in "ab":
        assert outcomes[rid].tokens == alone(text(rid * 8), greedy(50, ignore_eos=True))
