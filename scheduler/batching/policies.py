"""The orders: who is admitted next, and who leaves first under pressure. One function and one table entry each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..request import Request

LPM_WINDOW = 32  # waiting requests whose prefixes are compared
LPM_MAX_PASSED = 16  # how often younger requests may go first before a request's age counts


class WaitingQueue:
    """Waiting requests by priority class; in a class first the ones that come back, then the new ones, each by arrival.

    A request is found and removed by id in constant time, whatever the length.
    """

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._order: list[int] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Request]:
        for priority in self._order:
            yield from self._classes[priority]

    def __contains__(self, req: Request) -> bool:
        return any(group.has(req) for group in self._classes.values())

    def append(self, req: Request, priority: int) -> None:
        """A new request, at the back of its class."""
        self._class(priority).fresh[req.rid] = req
        self._len += 1

    def put_front(self, req: Request, priority: int) -> None:
        """A request that ran already, or belongs to one that did: before all new ones, in order of arrival."""
        front = self._class(priority).front
        front[req.rid] = req
        if len(front) > 1:
            ordered = sorted(front.values(), key=lambda other: other.arrival)
            front.clear()
            front.update((other.rid, other) for other in ordered)
        self._len += 1

    def remove(self, req: Request, priority: int) -> None:
        """Take out one request. Raises KeyError when it is not waiting."""
        group = self._classes[priority]
        if group.front.pop(req.rid, None) is None:
            del group.fresh[req.rid]
        self._len -= 1
        if not group.front and not group.fresh:
            del self._classes[priority]
            self._order.remove(priority)

    def _class(self, priority: int) -> _Class:
        if priority not in self._classes:
            self._classes[priority] = _Class()
            self._order = sorted(self._classes, reverse=True)
        return self._classes[priority]


class _Class:
    """One priority class of the waiting queue."""

    def __init__(self) -> None:
        self.front: dict[str, Request] = {}
        # Taking from the head of a plain dict costs the holes that earlier takes left behind.
        self.fresh: OrderedDict[str, Request] = OrderedDict()

    def has(self, req: Request) -> bool:
        """Whether it waits here."""
        return req.rid in self.front or req.rid in self.fresh

    def __iter__(self) -> Iterator[Request]:
        yield from self.front.values()
        yield from self.fresh.values()


def fcfs(waiting: Iterator[Request], _match_len: Callable[[Request], int]) -> Iterator[Request]:
    """First come, first served."""
    return waiting


def longest_prefix_match(waiting: Iterator[Request], match_len: Callable[[Request], int]) -> Iterator[Request]:
    """Longest cached prefix first among the first ``LPM_WINDOW``; nobody is passed for ever (``LPM_MAX_PASSED``)."""
    window = list(islice(waiting, LPM_WINDOW))
    aged = [req for req in window if req.is_retracted or req.history.times_passed >= LPM_MAX_PASSED]
    rest = [req for req in window if not req.is_retracted and req.history.times_passed < LPM_MAX_PASSED]
    rest.sort(key=match_len, reverse=True)  # stable: equal matches keep their order of arrival
    yield from aged
    for index, req in enumerate(rest):
        yield req
        # Reached only when ``req`` was taken or may be passed: whoever arrived before it has been passed once more.
        for other in rest[index + 1 :]:
            other.history.times_passed += other.arrival < req.arrival
    yield from waiting


AdmissionOrder = Callable[[Iterator[Request], Callable[[Request], int]], Iterator[Request]]
ADMISSION_ORDERS: dict[str, AdmissionOrder] = {"fcfs": fcfs, "lpm": longest_prefix_match, "priority": fcfs}


def queue_class(policy: str, req: Request) -> int:
    """The priority class a request waits in; all share one unless the policy is ``priority``."""
    return req.priority if policy == "priority" else 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible victim. frees: pages that its leaving makes usable; cost: tokens of K/V that are lost with them."""

    req: Request
    frees: int
    cost: int


def shortest_output_first(req: Request) -> tuple[int, int, int, str]:
    """The owner's order: the shortest output leaves first, among equals the longest prompt.

    Ties go by arrival, the youngest first, then id, so that the order is total and the same on every rank.
    """
    return (req.num_outputs, -req.prompt_len, -req.arrival, req.rid)


def by_length(candidates: Sequence[Candidate], _shortfall: int) -> Candidate:
    """``length``: the shortest output."""
    return min(candidates, key=lambda candidate: shortest_output_first(candidate.req))


def by_priority(candidates: Sequence[Candidate], _shortfall: int) -> Candidate:
    """``priority``: the lowest priority, then as ``length``."""
    return min(candidates, key=lambda candidate: (candidate.req.priority, shortest_output_first(candidate.req)))


def by_cost(candidates: Sequence[Candidate], shortfall: int) -> Candidate:
    """``cost``: the one victim that frees the shortfall for the fewest lost tokens.

    When no single one does, the one that frees most goes first, so that the victims are few; the last of them is again
    the cheapest that suffices.
    """
    enough = [candidate for candidate in candidates if candidate.frees >= shortfall]
    if enough:
        return min(enough, key=lambda candidate: (candidate.cost, shortest_output_first(candidate.req)))
    return min(
        candidates, key=lambda candidate: (-candidate.frees, candidate.cost, shortest_output_first(candidate.req))
    )


VictimPolicy = Callable[[Sequence[Candidate], int], Candidate]
RETRACT_POLICIES: dict[str, VictimPolicy] = {"length": by_length, "cost": by_cost, "priority": by_priority}
