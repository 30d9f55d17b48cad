"""The order of each retract policy."""

from __future__ import annotations

from ebbtide.retract_policies import Candidate, by_cost, by_length, by_priority, shortest_output_first
from ebbtide.scheduler.request import Request

from ..scheduler.make import request


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


def candidate(rid: str, frees: int, cost: int, **fields: object) -> Candidate[Request]:
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


def test_length_takes_the_shortest_output() -> None:
    assert by_length([candidate("a", 1, 1, outputs=3), candidate("b", 1, 1, outputs=2)], 1).req.rid == "b"
