from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.queue import WaitingQueue

from ..make import request


def rids(queue: WaitingQueue) -> str:
    return "".join(req.rid for req in queue)


def test_new_requests_wait_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    for index, rid in enumerate("abc"):
        queue.put(request(rid, arrival=index), front=False)
    assert (rids(queue), len(queue)) == ("abc", 3)


def test_requeued_requests_wait_before_new_ones_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    queue.put(request("z", arrival=9), front=False)
    for rid, arrival in [("c", 3), ("a", 1), ("b", 2)]:
        queue.put(request(rid, arrival=arrival), front=True)
    assert rids(queue) == "abcz"


def test_a_higher_priority_waits_before_a_requeued_lower_priority() -> None:
    queue = WaitingQueue(by_priority=True)
    queue.put(request("low", priority=-5), front=True)
    queue.put(request("high", priority=7), front=False)
    queue.put(request("mid"), front=False)
    assert rids(queue) == "highmidlow"


def test_a_request_is_removed_from_any_place_in_the_queue() -> None:
    queue = WaitingQueue()
    back, new = request("b"), request("n")
    queue.put(back, front=True)
    queue.put(new, front=False)
    assert back in queue
    assert new in queue
    queue.remove(back)
    queue.remove(new)
    assert (len(queue), rids(queue)) == (0, "")
    assert back not in queue
    with pytest.raises(KeyError):
        queue.remove(new)


def test_taking_from_the_head_of_a_long_queue_does_not_walk_it() -> None:
    queue = WaitingQueue()
    requests = [request(str(index)) for index in range(20_000)]
    for req in requests:
        queue.put(req, front=False)
    for req in requests:  # with a plain dict this is quadratic and takes a minute
        assert next(iter(queue)) is req
        queue.remove(req)


def test_priorities_are_ignored_by_default() -> None:
    queue = WaitingQueue()
    queue.put(request("a"), front=False)
    queue.put(request("b", priority=7), front=False)
    assert rids(queue) == "ab"
