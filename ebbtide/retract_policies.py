"""Retract policies: which running request is retracted first. Each policy is one function and one table entry.

The configuration takes the flag's values from the table, and the scheduler takes the function. A policy may read the
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
    prompt_len: int  # number of prompt tokens
    priority: int

    @property
    def num_outputs(self) -> int:
        """Number of output tokens collected so far."""


R = TypeVar("R", bound=Retractable)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[R]):
    """A possible victim."""

    req: R
    frees: int  # pages that the request's retraction makes usable
    cost: int  # tokens of K/V to recompute after its retraction


class VictimPolicy(Protocol):
    """Chooses one of the candidates, which are in order of admission. There is at least one."""

    def __call__(self, candidates: Sequence[Candidate[R]], shortfall: int, /) -> Candidate[R]:
        """Return the request to retract next. shortfall: number of pages that are still missing."""


def shortest_output_first(req: Retractable) -> tuple[int, int, int, str]:
    """Sort key: the shortest output first, then the longest prompt.

    Ties are broken by arrival, the youngest first, then by id: the order is total and the same on every rank.
    """
    return (req.num_outputs, -req.prompt_len, -req.arrival, req.rid)


def by_length(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """``length``: retract the request with the shortest output first."""
    return min(candidates, key=lambda candidate: shortest_output_first(candidate.req))


def by_priority(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """``priority``: retract the request of the lowest priority first; among equal priorities like ``length``."""
    return min(candidates, key=lambda candidate: (candidate.req.priority, shortest_output_first(candidate.req)))


def by_cost(candidates: Sequence[Candidate[R]], shortfall: int) -> Candidate[R]:
    """``cost``: retract the request that frees the shortfall at the cost of the fewest recomputed tokens.

    If no single request frees enough, the one that frees the most pages is chosen first, so that few requests are
    retracted. The last victim is again the cheapest request that frees the rest.
    """
    enough = [candidate for candidate in candidates if candidate.frees >= shortfall]
    if enough:
        return min(enough, key=lambda candidate: (candidate.cost, shortest_output_first(candidate.req)))
    return min(
        candidates, key=lambda candidate: (-candidate.frees, candidate.cost, shortest_output_first(candidate.req))
    )


@dataclass(frozen=True, slots=True)
class RetractPolicy:
    """A value of ``--retract-policy``. first: description of the first victim, for the help text."""

    select_victim: VictimPolicy
    first: str


RETRACT_POLICIES = {
    "length": RetractPolicy(by_length, "shortest output"),
    "cost": RetractPolicy(by_cost, "fewest tokens to recompute"),
    "priority": RetractPolicy(by_priority, "lowest priority"),
}
