"""Admission orders. Each policy is one function and one entry in ``ADMISSION_ORDERS``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from ..request import Request

LPM_WINDOW = 32  # number of waiting requests whose prefixes are compared
LPM_MAX_PASSED = 16  # number of times that younger requests may overtake a request


def fcfs(waiting: Iterator[Request], _match_len: Callable[[Request], int]) -> Iterator[Request]:
    """``fcfs``: first come, first served."""
    return waiting


def longest_prefix_match(waiting: Iterator[Request], match_len: Callable[[Request], int]) -> Iterator[Request]:
    """``lpm``: the longest cached prefix first, among the first ``LPM_WINDOW`` requests.

    No request overtakes a request that was retracted, or that was already overtaken ``LPM_MAX_PASSED`` times.
    """
    window = list(islice(waiting, LPM_WINDOW))
    aged = [req for req in window if req.is_retracted or req.history.times_passed >= LPM_MAX_PASSED]
    rest = [req for req in window if not req.is_retracted and req.history.times_passed < LPM_MAX_PASSED]
    rest.sort(key=match_len, reverse=True)  # stable: equal matches keep their order of arrival
    yield from aged
    for index, req in enumerate(rest):
        yield req
        # Reached only if the caller requests the next candidate: count the requests that ``req`` has overtaken.
        for other in rest[index + 1 :]:
            other.history.times_passed += other.arrival < req.arrival
    yield from waiting


AdmissionOrder = Callable[[Iterator[Request], Callable[[Request], int]], Iterator[Request]]
ADMISSION_ORDERS: dict[str, AdmissionOrder] = {
    "fcfs": fcfs,
    "lpm": longest_prefix_match,
    "priority": fcfs,
    "fair": fcfs,
}
