"""The exchangeable policies of a scheduler. Flags select them, and ``ebbtide simulate`` compares them."""

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
    """Decides in each step which waiting requests may start."""

    def start_step(self, running: Iterable[Request]) -> None:
        """Begin a step. running: the requests that are running before any admission."""

    def charge(self, req: Request) -> None:
        """Record that ``req`` was started, so that its memory is reserved when later candidates are evaluated."""

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """Decide whether ``req`` may start, as if the requests in ``without`` had been retracted."""


@dataclass(frozen=True, slots=True)
class SchedulingPolicies:
    """The policies that choose which request is retracted and which may start.

    Attributes:
        admission: creates the admission policy from the first pool, the ratio, the output lengths and the other pools.
    """

    select_victim: VictimPolicy
    admission: Callable[[Pool, NewTokenRatio, OutputLengths, Sequence[KvPool]], AdmissionRule] = Admission
    ratio: Callable[[float], NewTokenRatio] = NewTokenRatio  # called with --schedule-conservativeness
    retracted_first: bool = (
        True  # True to requeue a retracted request before all new requests, False to requeue it behind them
    )
    headroom: int = 1  # pages per running row that a retraction frees in addition to the demand of the next step


def default_policies(retract_policy: str) -> SchedulingPolicies:
    """Return ebbtide's default policies, with the retract policy named ``retract_policy``."""
    return SchedulingPolicies(RETRACT_POLICIES[retract_policy].select_victim)
