from __future__ import annotations

import random

import pytest

from ebbtide.scheduler.batching.policies import (
    ADMISSION_ORDERS,
    LPM_MAX_PASSED,
    RETRACT_POLICIES,
    Candidate,
    WaitingQueue,
    by_cost,
    by_length,
    by_priority,
    longest_prefix_match,
    queue_class,
    shortest_output_first,
)
from ebbtide.scheduler.request import Request

from ..make import request


def rids(queue: WaitingQueue) -> str:
    return "".join(req.rid for req in queue)


def test_new_requests_wait_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    for index, rid in enumerate("abc"):
        queue.append(request(rid, arrival=index), 0)
    assert (rids(queue), len(queue)) == ("abc", 3)


def test_those_that_come_back_stand_before_the_new_ones_by_arrival() -> None:
    queue = WaitingQueue()
    queue.append(request("z", arrival=9), 0)
    for rid, arrival in [("c", 3), ("a", 1), ("b", 2)]:
        queue.put_front(request(rid, arrival=arrival), 0)
    assert rids(queue) == "abcz"


def test_higher_priority_stands_before_lower_even_when_that_comes_back() -> None:
    queue = WaitingQueue()
    queue.put_front(request("low"), -5)
    queue.append(request("high"), 7)
    queue.append(request("mid"), 0)
    assert rids(queue) == "highmidlow"


def test_a_request_is_removed_from_where_it_stands() -> None:
    queue = WaitingQueue()
    back, new = request("b"), request("n")
    queue.put_front(back, 0)
    queue.append(new, 0)
    assert back in queue
    assert new in queue
    queue.remove(back, 0)
    queue.remove(new, 0)
    assert (len(queue), rids(queue)) == (0, "")
    assert back not in queue
    with pytest.raises(KeyError):
        queue.remove(new, 0)


def test_taking_from_the_head_of_a_long_queue_does_not_walk_it() -> None:
    queue = WaitingQueue()
    requests = [request(str(index)) for index in range(20_000)]
    for req in requests:
        queue.append(req, 0)
    for req in requests:  # with a plain dict this is quadratic and takes a minute
        assert next(iter(queue)) is req
        queue.remove(req, 0)


def test_only_the_priority_policy_looks_at_priorities() -> None:
    req = request(priority=7)
    assert [queue_class(name, req) for name in ("fcfs", "lpm", "priority")] == [0, 0, 7]


def test_longest_prefix_goes_first_and_equal_ones_by_arrival() -> None:
    requests = [request(rid, arrival=index) for index, rid in enumerate("abcd")]
    lengths = {"a": 0, "b": 2, "c": 5, "d": 2}
    order = longest_prefix_match(iter(requests), lambda req: lengths[req.rid])
    assert [req.rid for req in order] == ["c", "b", "d", "a"]


def test_nobody_is_passed_for_ever_under_longest_prefix_match() -> None:
    cold = request("cold", arrival=0)
    taken = 0
    for arrival in range(1, 100):
        first = next(order := longest_prefix_match(iter([cold, request("hot", arrival=arrival)]), _hot))
        if first is cold:
            break
        next(order)  # the hot one was taken
        taken += 1
    assert taken == LPM_MAX_PASSED


def test_who_was_retracted_goes_first_under_longest_prefix_match() -> None:
    back = request("back", arrival=5)
    back.is_retracted = True
    order = longest_prefix_match(iter([request("hot", arrival=1), back]), _hot)
    assert [req.rid for req in order] == ["back", "hot"]


def test_requests_beyond_the_window_keep_their_order() -> None:
    requests = [request(str(index), arrival=index) for index in range(50)]
    rng = random.Random(1)
    order = list(longest_prefix_match(iter(requests), lambda req: rng.random()))  # type: ignore[arg-type,return-value]
    assert [req.rid for req in order[32:]] == [str(index) for index in range(32, 50)]


def test_every_policy_of_the_flag_has_an_order() -> None:
    assert set(ADMISSION_ORDERS) == {"fcfs", "lpm", "priority"}


def test_the_shortest_output_leaves_first_then_the_longest_prompt_then_the_youngest() -> None:
    requests = [
        request("long output", outputs=9, prompt=50),
        request("old", outputs=2, prompt=8, arrival=1),
        request("young", outputs=2, prompt=8, arrival=2),
        request("long prompt", outputs=2, prompt=9),
        request("fresh", outputs=0, prompt=1),
    ]
    order = [req.rid for req in sorted(requests, key=shortest_output_first)]
    assert order == ["fresh", "long prompt", "young", "old", "long output"]


def _hot(req: Request) -> int:
    return 10 if req.rid == "hot" else 0


def candidate(rid: str, frees: int, cost: int, **fields: object) -> Candidate:
    return Candidate(request(rid, **fields), frees, cost)  # type: ignore[arg-type]


def test_cost_takes_the_cheapest_single_victim_that_suffices() -> None:
    candidates = [
        candidate("big", 9, 140),
        candidate("small", 2, 20),
        candidate("right", 5, 70),
        candidate("dear", 5, 80),
    ]
    assert by_cost(candidates, 4).req.rid == "right"
    assert by_cost(candidates, 1).req.rid == "small"


def test_cost_takes_the_largest_first_when_one_is_not_enough() -> None:
    candidates = [candidate("a", 3, 40), candidate("b", 9, 140), candidate("c", 8, 20)]
    assert by_cost(candidates, 10).req.rid == "b"
    assert by_cost([candidates[0], candidates[2]], 1).req.rid == "c"


def test_priority_lets_the_lowest_leave_first_then_the_shortest_output() -> None:
    candidates = [
        candidate("high", 5, 5, priority=3, outputs=1),
        candidate("low long", 5, 5, priority=-1, outputs=9),
        candidate("low short", 5, 5, priority=-1, outputs=2),
    ]
    assert by_priority(candidates, 1).req.rid == "low short"


def test_every_retract_policy_of_the_flag_exists() -> None:
    assert set(RETRACT_POLICIES) == {"length", "cost", "priority"}
    assert by_length([candidate("a", 1, 1, outputs=3), candidate("b", 1, 1, outputs=2)], 1).req.rid == "b"
