"""Retract policies: which running request is retracted first. Each is one function and one table entry.

The configuration takes the names of the flag from the table, the scheduler its function. A policy may read the
attributes of ``Retractable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Retractable(Protocol):
    """The attributes of a running request that a policy may read."""

    rid: str
    arrival: int  # position in the order of arrival
    prompt_len: int  # tokens
    priority: int

    @property
    def num_outputs(self) -> int:
        """Number of output tokens collected so far."""


R = TypeVar("R", bound=Retractable)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[R]):
    """A possible victim."""

    req: R
    frees: int  # pages that its retraction makes usable
    cost: int  # tokens of K/V to recompute


class VictimPolicy(Protocol):
    """Chooses one of the candidates, which are in order of admission and at least one."""

    def __call__(self, candidates: Sequence[Candidate[R]], shortfall: int, /) -> Candidate[R]:
        """The request to retract next. shortfall: pages that are still missing."""


def shortest_output_first(req: Retractable) -> tuple[int, int, int, str]:
    """Sort key: the shortest output first, then the longest prompt.

    Ties are broken by arrival, the youngest first, then by id: the order is total and the same on every rank.
    """
    return (req.num_outputs, -req.prompt_len, -req.arrival, req.rid)


def by_length(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """``length``: the shortest output."""
    return min(candidates, key=lambda candidate: shortest_output_first(candidate.req))


def by_priority(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """``priority``: the lowest priority, then as ``length``."""
    return min(candidates, key=lambda candidate: (candidate.req.priority, shortest_output_first(candidate.req)))


def by_cost(candidates: Sequence[Candidate[R]], shortfall: int) -> Candidate[R]:
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


@dataclass(frozen=True, slots=True)
class RetractPolicy:
    """A value of ``--retract-policy``. first: the request that is retracted first, for the help text."""

    select_victim: VictimPolicy
    first: str


RETRACT_POLICIES = {
    "length": RetractPolicy(by_length, "shortest output"),
    "cost": RetractPolicy(by_cost, "fewest tokens to recompute"),
    "priority": RetractPolicy(by_priority, "lowest priority"),
}
