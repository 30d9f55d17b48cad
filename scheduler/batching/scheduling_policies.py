"""The exchangeable decisions of a scheduler in one value: selected by flags, compared by ``ebbtide simulate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ebbtide.retract_policies import RETRACT_POLICIES, VictimPolicy

from ..memory.kv_pool import KvPool
from ..memory.pool import Pool
from ..request import Request
from .admission import Admission, AdmissionResult
from .new_token_ratio import NewTokenRatio, OutputLengths


class AdmissionRule(Protocol):
    """Evaluates the candidates of one step after another."""

    def start_step(self, running: Iterable[Request]) -> None:
        """A step begins with these requests running."""

    def charge(self, req: Request) -> None:
        """``req`` runs from now on: account for it when evaluating the following candidates."""

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """Decide if ``req`` may start, if the requests in ``without`` were retracted."""


@dataclass(frozen=True, slots=True)
class SchedulingPolicies:
    """The policies that choose which request is retracted and which may start.

    Attributes:
        admission: creates the rule from the pool with the prefix cache, ratio, output lengths and other pools.
    """

    select_victim: VictimPolicy
    admission: Callable[[Pool, NewTokenRatio, OutputLengths, Sequence[KvPool]], AdmissionRule] = Admission
    ratio: Callable[[float], NewTokenRatio] = NewTokenRatio  # made from the schedule conservativeness
    retracted_first: bool = True  # a retracted request waits before all new ones, not behind them
    headroom: int = 1  # pages per running row that a retraction frees beyond the next step


def default_policies(retract_policy: str) -> SchedulingPolicies:
    """Ebbtide's own policies with the victim policy of that name."""
    return SchedulingPolicies(RETRACT_POLICIES[retract_policy].select_victim)
