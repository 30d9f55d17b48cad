"""The expected wait of new requests, and the refusal of those that would wait too long. The clock counts steps."""

from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.queue import WaitingQueue
from ebbtide.scheduler.batching.wait_estimate import WaitEstimate

from ..make import request
from ..world import Shape, World, greedy, text


def test_the_wait_is_the_number_of_waiting_requests_at_the_rate_of_the_last_starts() -> None:
    waits = WaitEstimate()
    for second in range(10):
        waits.started(1, float(second))
    assert waits.expected_s(20, 10.0) == pytest.approx(20.0)
    assert waits.expected_s(0, 10.0) == 0.0
    assert waits.expected_s(20, 30.0) == pytest.approx(60.0)  # nothing has started since


def test_there_is_no_estimate_from_a_few_starts_or_from_those_before_the_queue_was_empty() -> None:
    waits = WaitEstimate()
    waits.started(3, 0.0)
    assert waits.expected_s(5, 9.0) == 0.0
    waits.started(3, 1.0)
    assert waits.expected_s(5, 9.0) > 0
    waits.reset()
    assert waits.expected_s(5, 9.0) == 0.0


def test_requests_of_lower_priority_do_not_count() -> None:
    by_priority, plain = WaitingQueue(by_priority=True), WaitingQueue()
    for number, priority in enumerate((5, 0, 0, -5)):
        for queue in (by_priority, plain):
            queue.put(request(str(number), arrival=number, priority=priority), front=False)
    assert [by_priority.num_before(priority) for priority in (6, 5, 0, -5)] == [0, 1, 3, 4]
    assert plain.num_before(6) == 4


def test_a_request_that_would_wait_too_long_is_refused_at_once() -> None:
    world = World(Shape(num_rows=1))
    for number in range(12):
        world.generate(f"r{number}", text(f"{number}"), greedy(10, ignore_eos=True))
    for _ in range(60):
        world.step()
    waiting = len(world.scheduler.state.waiting)
    assert waiting >= 4
    expected_s = world.scheduler.snapshot().gauges["expected_queue_seconds"]
    assert expected_s == pytest.approx(10 * waiting, rel=0.4)
    world.generate("patient", text("p"), greedy(10, ignore_eos=True), queue_timeout_s=1000.0)
    world.generate("hasty", text("h"), greedy(10, ignore_eos=True), queue_timeout_s=2.0)
    outcomes = world.run()
    (abort,) = outcomes["hasty"].aborts
    assert (abort.status, abort.code, outcomes["hasty"].tokens) == (429, "queue_full", [])
    assert abort.retry_after_s is not None
    assert abort.retry_after_s > 2.0
    assert outcomes["patient"].finish == "length"
