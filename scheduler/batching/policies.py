"""Orders of admission and retraction. Each is one function and one table entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..request import Request

LPM_WINDOW = 32  # waiting requests whose prefixes are compared
LPM_MAX_PASSED = 16  # how often younger requests may go first before a request's age counts


def fcfs(waiting: Iterator[Request], _match_len: Callable[[Request], int]) -> Iterator[Request]:
    """``fcfs``: first come, first served."""
    return waiting


def longest_prefix_match(waiting: Iterator[Request], match_len: Callable[[Request], int]) -> Iterator[Request]:
    """``lpm``: the longest cached prefix first, among the first ``LPM_WINDOW`` requests.

    A request that was passed ``LPM_MAX_PASSED`` times, or was retracted, is not passed again.
    """
    window = list(islice(waiting, LPM_WINDOW))
    aged = [req for req in window if req.is_retracted or req.history.times_passed >= LPM_MAX_PASSED]
    rest = [req for req in window if not req.is_retracted and req.history.times_passed < LPM_MAX_PASSED]
    rest.sort(key=match_len, reverse=True)  # stable: equal matches keep their order of arrival
    yield from aged
    for index, req in enumerate(rest):
        yield req
        # Reached only if ``req`` was admitted or may be passed: each request that arrived before it was passed once.
        for other in rest[index + 1 :]:
            other.history.times_passed += other.arrival < req.arrival
    yield from waiting


AdmissionOrder = Callable[[Iterator[Request], Callable[[Request], int]], Iterator[Request]]
ADMISSION_ORDERS: dict[str, AdmissionOrder] = {"fcfs": fcfs, "lpm": longest_prefix_match, "priority": fcfs}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible victim."""

    req: Request
    frees: int  # pages that its retraction makes usable
    cost: int  # tokens of K/V to recompute


def shortest_output_first(req: Request) -> tuple[int, int, int, str]:
    """Sort key: the shortest output first, then the longest prompt.

    Ties are broken by arrival, the youngest first, then by id: the order is total and the same on every rank.
    """
    return (req.num_outputs, -req.prompt_len, -req.arrival, req.rid)


def by_length(candidates: Sequence[Candidate], _shortfall: int) -> Candidate:
    """``length``: the shortest output."""
    return min(candidates, key=lambda candidate: shortest_output_first(candidate.req))


def by_priority(candidates: Sequence[Candidate], _shortfall: int) -> Candidate:
    """``priority``: the lowest priority, then as ``length``."""
    return min(candidates, key=lambda candidate: (candidate.req.priority, shortest_output_first(candidate.req)))


def by_cost(candidates: Sequence[Candidate], shortfall: int) -> Candidate:
    """``cost``: the victim that frees the shortfall for the fewest tokens to recompute.

    If no single victim frees enough, the one that frees most is chosen first, so that there are few victims; the last
    of them is again the cheapest that suffices.
    """
    enough = [candidate for candidate in candidates if candidate.frees >= shortfall]
    if enough:
        return min(enough, key=lambda candidate: (candidate.cost, shortest_output_first(candidate.req)))
    return min(
        candidates, key=lambda candidate: (-candidate.frees, candidate.cost, shortest_output_first(candidate.req))
    )


VictimPolicy = Callable[[Sequence[Candidate], int], Candidate]
RETRACT_POLICIES: dict[str, VictimPolicy] = {"length": by_length, "cost": by_cost, "priority": by_priority}
