from __future__ import annotations

import random

from ebbtide.scheduler.batching.policies import (
    ADMISSION_ORDERS,
    LPM_MAX_PASSED,
    RETRACT_POLICIES,
    Candidate,
    by_cost,
    by_length,
    by_priority,
    longest_prefix_match,
    shortest_output_first,
)
from ebbtide.scheduler.request import Request

from ..make import request


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
