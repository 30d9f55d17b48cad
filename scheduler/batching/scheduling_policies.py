"""The exchangeable policies of a scheduler. Flags select them, and ``ebbtide simulate`` compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ebbtide.retract_policies import RETRACT_POLICIES, VictimPolicy

from ..memory.kv_pool import KvPool
from ..memory.pool import Pool
from ..request import Request
from .admission import DEFAULT_RISK, Admission, AdmissionResult
from .new_token_ratio import NewTokenRatio, ReportedRatio
from .output_lengths import OutputLengths


class AdmissionRule(Protocol):
    """Decides in each step which waiting requests may start."""

    def start_step(self, running: Iterable[Request]) -> None:
        """Begin a step. running: the requests that are running before any admission."""

    def charge(self, req: Request) -> None:
        """Record that ``req`` was started, so that its memory is reserved when later candidates are evaluated."""

    def left(self, req: Request) -> None:
        """Record that ``req``, which may have been charged, no longer runs."""

    def advance(self) -> None:
        """Record that a step with decode rows was planned."""

    def expects_room(self) -> bool:
        """True if running requests are expected to free soon what the next step lacks."""

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """Decide whether ``req`` may start, as if the requests in ``without`` had been retracted."""


class ReservesPerStep:
    """Base of admission rules that read the running requests in every step."""

    def left(self, req: Request) -> None:
        """See ``AdmissionRule``."""

    def advance(self) -> None:
        """See ``AdmissionRule``."""

    def expects_room(self) -> bool:
        """See ``AdmissionRule``. Requests are retracted at once."""
        return False


@dataclass(frozen=True, slots=True)
class SchedulingPolicies:
    """The policies that choose which request is retracted and which may start.

    Attributes:
        admission: creates the admission policy from the first pool, the ratio, the output lengths and the other pools.
    """

    select_victim: VictimPolicy
    admission: Callable[[Pool, NewTokenRatio, OutputLengths, Sequence[KvPool]], AdmissionRule] = Admission
    ratio: Callable[[float], NewTokenRatio] = ReportedRatio  # called with --schedule-conservativeness
    retracted_first: bool = (
        True  # True to requeue a retracted request before all new requests, False to requeue it behind them
    )
    headroom: int = 0  # pages per running row that a retraction frees in addition to the demand of the next step


def default_policies(
    retract_policy: str, *, risk: float | None = None, conservativeness: float = 1.0
) -> SchedulingPolicies:
    """Return ebbtide's policies with the retract policy of this name.

    risk: see ``Admission``; if it is None, the default risk to the power of ``conservativeness``.
    """
    if risk is None:
        risk = DEFAULT_RISK**conservativeness
    return SchedulingPolicies(RETRACT_POLICIES[retract_policy].select_victim, partial(Admission, risk=risk))
