"""Retractions for reasons other than memory pressure: a request of higher priority, or a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ebbtide.retract_policies import shortest_output_first

from ..gates import Gates
from ..lifecycle import Lifecycle
from ..metrics import SchedulerMetrics
from ..request import Request
from ..retraction import Retractor, RetractReason
from .admission import Verdict
from .scheduling_policies import AdmissionRule


class Preemption:
    """Retracts running requests of lower priority so that the request at the head of the queue can start."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        retractor: Retractor,
        admission: AdmissionRule,
        gates: Gates,
        metrics: SchedulerMetrics,
        *,
        enabled: bool,
    ) -> None:
        self._lifecycle = lifecycle
        self._retractor = retractor
        self._admission = admission
        self._gates = gates
        self._metrics = metrics
        self._enabled = enabled
        self._due: list[Request] = []  # the result of the last call of ``_candidates``

    def due(self) -> bool:
        """Return True if the head of the queue can start only after requests of lower priority have been retracted."""
        self._due = self._candidates() if self._enabled else []
        return bool(self._due)

    def preempt(self, now: float) -> None:
        """Retract the requests that ``due`` found, lowest priority first, until the head of the queue may start."""
        before = self._lifecycle.num_retracted
        self._retractor.retract(self._victims(), RetractReason.PRIORITY, now)
        self._metrics.count("num_preempted_requests_total", self._lifecycle.num_retracted - before)

    def _victims(self) -> Iterator[Request]:
        head = self._head()
        for req in self._due:
            if head is None or self._may_start(head, []):
                return
            yield req

    def _head(self) -> Request | None:
        return next(self._lifecycle.waiting.candidates(), None)

    def _may_start(self, head: Request, without: Sequence[Request]) -> bool:
        """True if ``head`` could start now if the requests in ``without`` were not running."""
        gone = {req.rid for req in without}
        self._admission.start_step(req for req in self._lifecycle.running if req.rid not in gone)
        verdict = self._admission.evaluate(head, without=without).verdict
        return verdict is not Verdict.WAIT and bool(self._lifecycle.free_rows or without)

    def _candidates(self) -> list[Request]:
        """Find the unprotected running requests of lower priority than the head of the queue.

        Returns an empty list if retracting them is unnecessary or not sufficient.
        """
        head = self._head()
        if head is None or not self._gates.ready(head):
            return []
        lower = [req for req in self._lifecycle.running if req.priority < head.priority and not req.protected]
        lower.sort(key=lambda req: (req.priority, shortest_output_first(req)))
        if not lower or self._may_start(head, []) or not self._may_start(head, lower):
            return []
        return lower


class ForcedRetraction:
    """Implements ``--test-retract-interval``: retracts a running request every ``interval`` steps.

    interval: number of steps; 0 for no retractions.
    """

    def __init__(self, lifecycle: Lifecycle, retractor: Retractor, interval: int) -> None:
        self._lifecycle = lifecycle
        self._retractor = retractor
        self._interval = interval
        self._last = 0

    def due(self) -> bool:
        """True if the interval has passed and a request may be retracted."""
        return bool(self._interval and self._retractor.num_steps - self._last >= self._interval and self._victims())

    def retract(self, now: float) -> None:
        """Retract one request."""
        victims = self._victims()
        self._last = self._retractor.num_steps
        self._retractor.retract([victims[self._last % len(victims)]], RetractReason.TEST, now)

    def _victims(self) -> list[Request]:
        """Return the unprotected running requests that have computed more tokens than before their last retraction.

        Retracting only these requests guarantees progress in every interval.
        """
        return [req for req in self._lifecycle.running if not req.protected and req.computed > req.history.high_water]
