from __future__ import annotations

import random

from ebbtide.scheduler.batching.policies import (
    ADMISSION_ORDERS,
    LPM_MAX_PASSED,
    longest_prefix_match,
)
from ebbtide.scheduler.request import Request

from ..make import request


def test_longest_prefix_goes_first_and_equal_ones_by_arrival() -> None:
    requests = [request(rid, arrival=index) for index, rid in enumerate("abcd")]
    lengths = {"a": 0, "b": 2, "c": 5, "d": 2}
    order = longest_prefix_match(iter(requests), lambda req: lengths[req.rid])
    assert [req.rid for req in order] == ["c", "b", "d", "a"]


def test_longest_prefix_match_starves_no_request() -> None:
    cold = request("cold", arrival=0)
    taken = 0
    for arrival in range(1, 100):
        first = next(order := longest_prefix_match(iter([cold, request("hot", arrival=arrival)]), _hot))
        if first is cold:
            break
        next(order)  # the hot one was taken
        taken += 1
    assert taken == LPM_MAX_PASSED


def test_longest_prefix_match_admits_retracted_requests_first() -> None:
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
    assert set(ADMISSION_ORDERS) == {"fcfs", "lpm", "priority", "fair"}


def _hot(req: Request) -> int:
    return 10 if req.rid == "hot" else 0
