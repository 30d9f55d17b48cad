"""Which requests are retracted, and how retractions are reported."""

from __future__ import annotations

import logging

import pytest

from ebbtide.messages import AbortReq, GenerateReq

from .world import Shape, World, greedy, text

LONG = greedy(60, ignore_eos=True)


def test_a_higher_priority_takes_the_place_of_the_lowest_when_rows_run_out() -> None:
    world = World(Shape(num_rows=2, policy="priority"))
    for rid, priority in (("low", -3), ("mid", 0)):
        world.generate(rid, text(rid), LONG, priority=priority)
    for _ in range(5):
        world.step()
    world.generate("high", text("high"), greedy(4, ignore_eos=True), priority=5)
    world.step()
    assert [req.rid for req in world.scheduler.state.running] == ["mid", "high"]
    outcomes = world.run()
    assert [len(outcomes[rid].tokens) for rid in ("low", "mid", "high")] == [60, 60, 4]
    totals = world.scheduler.state.metrics.totals
    assert (totals["num_preempted_requests_total"], totals["num_retracted_requests_total"]) == (1, 1)
    (event,) = world.events
    assert (event.cause, [victim.rid for victim in event.victims]) == ("priority", ["low"])


def test_a_higher_priority_takes_memory_from_lower_ones() -> None:
    world = World(Shape(num_pages=20, policy="priority", conservativeness=0.02))
    world.generate("low", text("x" * 40), greedy(30, ignore_eos=True), priority=-3)
    for _ in range(4):
        world.step()
    world.generate("high", text("y" * 50), greedy(4, ignore_eos=True), priority=5)
    outcomes = world.run()
    assert world.events[0].cause == "priority"
    assert world.events[0].victims[0].rid == "low"
    assert [len(outcomes[rid].tokens) for rid in ("low", "high")] == [30, 4]


@pytest.mark.parametrize("priority", [-3, 0])
def test_equal_and_lower_priorities_preempt_no_request(priority: int) -> None:
    world = World(Shape(num_rows=1, policy="priority"))
    world.generate("runs", text("runs"), LONG, priority=0)
    world.step()
    world.generate("waits", text("waits"), greedy(4), priority=priority)
    world.run()
    assert world.events == []


def test_no_request_is_preempted_if_that_would_not_be_enough() -> None:
    world = World(Shape(num_pages=20, num_rows=4, policy="priority", conservativeness=0.02))
    world.generate("equal", text("x" * 48), greedy(20, ignore_eos=True), priority=5)
    world.generate("low", text("z" * 4), greedy(3, ignore_eos=True), priority=-3)
    for _ in range(3):
        world.step()
    world.generate("big", text("y" * 60), greedy(4, ignore_eos=True), priority=5)
    outcomes = world.run()
    assert [event.cause for event in world.events if event.cause == "priority"] == []
    assert all(outcome.finish == "length" for outcome in outcomes.values())


def test_a_protected_request_is_not_preempted() -> None:
    world = World(Shape(num_rows=1, policy="priority", max_retractions=1))
    world.generate("low", text("low"), LONG, priority=-3)
    world.step()
    for index in range(3):
        world.generate(f"high{index}", text("high"), greedy(2, ignore_eos=True), priority=5)
        for _ in range(6):
            world.step()
    world.run()
    assert [victim.rid for event in world.events for victim in event.victims] == ["low"]


def test_priorities_are_ignored_under_another_policy() -> None:
    world = World(Shape(num_rows=1, policy="fcfs"))
    world.generate("low", text("low"), greedy(9, ignore_eos=True), priority=-3)
    world.step()
    world.generate("high", text("high"), greedy(2), priority=5)
    world.run()
    assert world.events == []


@pytest.mark.parametrize("overlap", [1, 2])
def test_memory_pressure_is_one_warning_and_one_event(overlap: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    world = World(Shape(num_pages=12, conservativeness=0.02, overlap=overlap))
    for rid in "abc":
        world.generate(rid, text(f"{rid} prompt"), greedy(30, ignore_eos=True))
    world.run()
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == len(world.events) > 0
    assert all(warning.startswith("Retract requests") for warning in warnings)
    for event, warning in zip(world.events, warnings, strict=True):
        assert event.cause == "memory"
        assert f"available {event.available_before} -> {event.available_after} tokens" in warning
        assert event.ratio_after >= event.ratio_before
        for victim in event.victims:
            assert f"{victim.rid} ({victim.num_output_tokens} outputs, {victim.freed_tokens // 4} pages)" in warning
    retractions = sum(len(event.victims) for event in world.events)
    assert retractions == world.scheduler.state.metrics.totals["num_retracted_requests_total"]


def test_the_event_names_the_aborted_request() -> None:
    world = World(Shape(num_pages=8))
    world.generate("big", text("x" * 20), greedy(500, ignore_eos=True))
    world.run()
    assert world.events[-1].aborted == "big"
    assert world.events[-1].victims == []


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
@pytest.mark.parametrize("bound", [3, -1])
@pytest.mark.parametrize("overlap", [1, 2])
def test_forced_retraction_ends_and_changes_nothing(interval: int, bound: int, overlap: int) -> None:
    plain = World()
    forced = World(Shape(retract_interval=interval, max_retractions=bound, overlap=overlap, chunk=8))
    for world in (plain, forced):
        for rid in "abc":
            world.generate(rid, text(f"{rid} a prompt of more than a chunk"), greedy(20, ignore_eos=True))
        world.run()
    assert {rid: plain.outcomes[rid].tokens for rid in "abc"} == {rid: forced.outcomes[rid].tokens for rid in "abc"}
    victims = [victim for event in forced.events for victim in event.victims]
    assert {event.cause for event in forced.events} == {"test"}
    if bound == 3:
        assert len(victims) <= 9
        assert max(victim.num_retractions for victim in victims) <= 3
    else:
        assert len(victims) >= 60 // (interval + 8)


def test_a_full_queue_refuses_with_429_and_retry_after() -> None:
    world = World(Shape(num_rows=1, max_queued=2))
    for index in range(5):
        world.generate(f"r{index}", text("x"), greedy(3, ignore_eos=True))
    outcomes = world.run()
    refused = [rid for rid, outcome in outcomes.items() if outcome.aborts]
    assert refused == ["r3", "r4"]  # one runs, two wait
    abort = outcomes["r3"].aborts[0]
    assert (abort.status, abort.code, abort.retry_after_s) == (429, "queue_full", 1.0)
    assert "--max-queued-requests" in abort.message


def test_free_rows_count_before_the_queue_does() -> None:
    world = World(Shape(num_rows=4, max_queued=1))
    for index in range(6):
        world.generate(f"r{index}", text("x"), greedy(3, ignore_eos=True))
    outcomes = world.run()
    assert [rid for rid, outcome in outcomes.items() if outcome.aborts] == ["r5"]


def test_when_memory_is_short_free_rows_do_not_count_as_places_in_the_queue() -> None:
    """Twelve long requests in a pool for three, with 200 free rows: two wait, and the others are refused."""
    world = World(Shape(num_pages=64, num_rows=200, max_queued=2))
    for index in range(3):
        world.generate(f"r{index}", text(f"{index} hello"), greedy(90, ignore_eos=True))
    for _ in range(5):
        world.step()
    for index in range(3, 12):
        world.generate(f"r{index}", text(f"{index} hello"), greedy(90, ignore_eos=True))
        world.step()
    refused = [rid for rid, outcome in world.outcomes.items() if outcome.aborts]
    assert len(world.scheduler.state.waiting) <= 2
    assert len(refused) >= 6
    world.run()


def test_an_idle_server_takes_a_request_with_more_choices_than_may_wait() -> None:
    world = World(Shape(num_rows=1, max_queued=1))
    world.send(GenerateReq(rids=("a", "b", "c"), prompt=text("x"), sampling=greedy(3, ignore_eos=True)))
    assert [outcome.finish for outcome in world.run().values()] == ["length"] * 3


def test_an_idle_server_takes_more_prompts_of_one_request_than_may_wait() -> None:
    """Another request after them is refused, and so is such a list while another request is open."""
    world = World(Shape(num_rows=4, max_queued=4))
    few = greedy(3, ignore_eos=True)
    for index in range(9):
        world.generate(f"r{index}", text("x"), few, num_before=index)
    world.generate("late", text("x"), few)
    outcomes = world.run()
    assert [rid for rid, outcome in outcomes.items() if outcome.aborts] == ["late"]
    world.generate("other", text("x"), greedy(30, ignore_eos=True))
    world.step()
    for index in range(9):
        world.generate(f"s{index}", text("x"), few, num_before=index)
    outcomes = world.run()
    assert [rid for rid, outcome in outcomes.items() if outcome.aborts] == ["late", "s7", "s8"]


def test_the_queue_limit_does_not_apply_to_retracted_requests() -> None:
    world = World(Shape(num_pages=14, num_rows=3, max_queued=1, conservativeness=0.02))
    for rid in "abc":
        world.generate(rid, text(f"{rid} prompt"), greedy(30, ignore_eos=True))
    sent = 0
    while not world.scheduler.idle or world.inbox:
        if world.steps % 3 == 0:
            world.generate(f"late{sent}", text("late"), greedy(2, ignore_eos=True))
            sent += 1
        world.step()
        world.read()
        if sent > 60:
            break
    outcomes = world.run()
    assert world.events
    assert [len(outcomes[rid].tokens) for rid in "abc"] == [30, 30, 30]
    assert any(outcome.aborts for rid, outcome in outcomes.items() if rid.startswith("late"))


def test_counters_conserve_at_every_moment() -> None:
    world = World(Shape(num_pages=16, num_rows=6, policy="priority", conservativeness=0.02, retract_interval=9))
    for index in range(12):
        world.generate(f"r{index}", text(f"{index} prompt"), greedy(25, ignore_eos=True), priority=index % 3)
    while world.inbox or not world.scheduler.idle:
        world.step()
        world.read()
        if world.steps % 11 == 0 and world.scheduler.state.requests:
            world.send(AbortReq(next(iter(world.scheduler.state.requests)), "client"))
        totals = world.scheduler.state.metrics.totals
        ended = sum(count for name, count in totals.items() if name.startswith("num_ended_while_retracted_total"))
        assert (
            totals["num_retracted_requests_total"]
            == totals["num_resumed_requests_total"] + ended + world.scheduler.state.num_retracted
        )
    assert totals["num_retracted_requests_total"] > 10
