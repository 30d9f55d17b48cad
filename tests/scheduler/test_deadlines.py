"""Requests that time out, and requests that must not. The world's clock counts steps."""

from __future__ import annotations

import pytest

from .world import Shape, World, greedy, text

PROMPT = text("a prompt of some length")


def timed_out(world: World, rid: str) -> bool:
    aborts = world.outcomes[rid].aborts if rid in world.outcomes else []
    return [(abort.reason, abort.status, abort.code) for abort in aborts] == [("timeout", 504, "timeout")]


def test_a_request_ends_at_its_limit_with_the_tokens_that_it_has() -> None:
    world = World(Shape())
    world.generate("a", PROMPT, greedy(100, ignore_eos=True), timeout_s=10)
    world.generate("b", PROMPT, greedy(100, ignore_eos=True), timeout_s=1000)
    outcomes = world.run()
    assert timed_out(world, "a")
    assert outcomes["a"].finish == "abort"
    assert 5 < len(outcomes["a"].tokens) == outcomes["a"].aborts[0].num_output_tokens <= 10
    assert outcomes["b"].finish == "length"
    assert world.scheduler.state.metrics.totals["num_aborted_requests_total{reason=timeout}"] == 1


def test_the_queue_timeout_aborts_waiting_requests_and_not_running_ones() -> None:
    world = World(Shape(num_rows=1))
    world.generate("a", PROMPT, greedy(50, ignore_eos=True), queue_timeout_s=5)
    world.generate("b", PROMPT, greedy(50, ignore_eos=True), queue_timeout_s=5)
    world.generate("c", PROMPT, greedy(50, ignore_eos=True))
    outcomes = world.run()
    assert outcomes["a"].finish == outcomes["c"].finish == "length"
    assert timed_out(world, "b")
    assert outcomes["b"].tokens == []


def test_the_request_timeout_applies_to_each_choice_and_the_queue_timeout_only_to_the_first() -> None:
    from ebbtide.messages import GenerateReq

    world = World(Shape(num_rows=1))
    world.send(GenerateReq(("a", "b"), PROMPT, greedy(20, ignore_eos=True), queue_timeout_s=5, timeout_s=30))
    outcomes = world.run()
    assert outcomes["a"].finish == "length"
    assert timed_out(world, "b")
    assert outcomes["b"].tokens, "it was not the queue's limit"


@pytest.mark.parametrize("limit", ["queue_timeout_s", "timeout_s"])
def test_a_timeout_of_zero_ends_a_request_before_it_runs(limit: str) -> None:
    world = World(Shape(num_rows=1))
    world.generate("a", PROMPT, greedy(5), **{limit: 0.0})
    world.receive()
    world.receive()
    world.read()
    assert timed_out(world, "a")


def test_waiting_after_a_retraction_counts_in_neither_timeout() -> None:
    world = World(Shape(num_pages=16, page_size=4, max_retractions=-1, conservativeness=0.01))
    for rid in "ab":
        world.generate(
            rid, text(f"{rid} prompt of its own....."), greedy(30, ignore_eos=True), queue_timeout_s=4, timeout_s=40
        )
    outcomes = world.run()
    assert world.scheduler.state.metrics.totals["num_retracted_requests_total"] > 0
    assert world.steps > 45, "one of them was there for longer than it was allowed to run"
    assert [outcomes[rid].finish for rid in "ab"] == ["length", "length"]


def test_a_request_that_waits_after_a_retraction_is_ended_once_it_has_run_long_enough_again() -> None:
    world = World(Shape(num_rows=2))
    world.generate("a", PROMPT, greedy(100, ignore_eos=True), timeout_s=20)
    for _ in range(5):
        world.step()
    (req,) = world.scheduler.state.running
    req.history.retracted_s = 50.0  # as if it had waited for this time
    outcomes = world.run()
    assert timed_out(world, "a")
    assert 65 <= len(outcomes["a"].tokens) <= 70


def test_deadlines_of_ended_requests_have_no_effect() -> None:
    world = World(Shape())
    for index in range(20):
        world.generate(f"r{index}", PROMPT, greedy(2), timeout_s=40, queue_timeout_s=40)
    world.run()
    world.steps = 100
    world.receive()
    assert not any(outcome.aborts for outcome in world.outcomes.values())


def test_a_turn_that_times_out_leaves_its_session_as_it_was() -> None:
    from ebbtide.messages import ListSessionsReq, OpenSessionReq, SessionTurn

    world = World(Shape(sessions=True))
    world.send(OpenSessionReq("open", "s", streaming=True))
    world.generate("first", PROMPT, greedy(4), session=SessionTurn("s"))
    world.run()
    world.generate("second", text(" more"), greedy(90, ignore_eos=True), session=SessionTurn("s"), timeout_s=5)
    world.run()
    assert timed_out(world, "second")
    world.send(ListSessionsReq("list", session_id="s"))
    world.run()
    [info] = world.replies["list"].sessions
    assert (info.num_turns, info.state) == (1, "warm")
