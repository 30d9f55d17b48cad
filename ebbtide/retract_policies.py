"""Retract policies: which running request is retracted first. Each policy is one function and one table entry.

The configuration takes the values of the flag from the table, and the scheduler takes the function. A policy may read
only the attributes of ``Retractable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Retractable(Protocol):
    """The attributes of a running request that a policy may read."""

    rid: str
    arrival: int  # position in the order of arrival; lower is earlier
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
    frees: int  # number of pages that the request's retraction makes usable
    cost: int  # number of tokens to recompute after its retraction


class VictimPolicy(Protocol):
    """Chooses one of the candidates. There is at least one, and they are in order of admission."""

    def __call__(self, candidates: Sequence[Candidate[R]], shortfall: int, /) -> Candidate[R]:
        """Return the candidate to retract next. shortfall: number of pages that are still missing."""


def shortest_output_first(req: Retractable) -> tuple[int, int, int, str]:
    """Sort key: the shortest output first, then the longest prompt.

    Ties are broken by arrival, the latest first, then by id, so that the order is total.
    """
    return (req.num_outputs, -req.prompt_len, -req.arrival, req.rid)


def by_length(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """``length``: retract the request with the shortest output first."""
    return min(candidates, key=lambda candidate: shortest_output_first(candidate.req))


def by_priority(candidates: Sequence[Candidate[R]], _shortfall: int) -> Candidate[R]:
    """``priority``: retract the request of the lowest priority first; among equal priorities, as ``length`` does."""
    return min(candidates, key=lambda candidate: (candidate.req.priority, shortest_output_first(candidate.req)))


def by_cost(candidates: Sequence[Candidate[R]], shortfall: int) -> Candidate[R]:
    """``cost``: among the requests that free the whole shortfall, retract the one with the fewest tokens to recompute.

    If no single request frees enough, retract the one that frees the most pages, so that few requests are retracted.
    The last victim is then again the cheapest request that frees the rest of the shortfall.
    """
    enough = [candidate for candidate in candidates if candidate.frees >= shortfall]
    if enough:
        return min(enough, key=lambda candidate: (candidate.cost, shortest_output_first(candidate.req)))
    return min(
        candidates, key=lambda candidate: (-candidate.frees, candidate.cost, shortest_output_first(candidate.req))
    )


@dataclass(frozen=True, slots=True)
class RetractPolicy:
    """A value of ``--retract-policy``.

    Attributes:
        first: description of the request that is retracted first, for the help text.
    """

    select_victim: VictimPolicy
    first: str


RETRACT_POLICIES = {
    "length": RetractPolicy(by_length, "shortest output"),
    "cost": RetractPolicy(by_cost, "fewest tokens to recompute"),
    "priority": RetractPolicy(by_priority, "lowest priority"),
}
