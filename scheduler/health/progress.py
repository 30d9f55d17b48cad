"""The definition of progress, the status that the loop publishes, and the detection of stalls.

Progress is an output token, a finished request, or a request whose computed length exceeds its previous maximum: a long
first prefill is progress, a recomputation after a retraction is not. The caller passes the time, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..outbox import Output
from ..request import Request


class Activity(Enum):
    """State of the scheduler loop."""

    RUNNING = "running"
    BLOCKED = "blocked"  # requests are waiting, but none is running and no step is in flight
    IDLE = "idle"
    PAUSED = "paused"  # paused by an operator

    @property
    def expects_progress(self) -> bool:
        """False if a lack of progress is normal."""
        return self not in (Activity.IDLE, Activity.PAUSED)


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """The status of the loop, for the watchdog. The object is immutable; for each change the loop creates a new one."""

    phase: str  # "serving", or "loading: " and what is being loaded or compiled
    activity: Activity
    work_periods: int = 0  # number of times that the loop became busy
    progress: int = 0  # ``ProgressCounter.count``, which never decreases
    forward_ct: int = 0  # number of plans submitted to the runner


class ProgressCounter:
    """Counts the iterations of the loop that made progress."""

    def __init__(self) -> None:
        self.count = 0
        self._marks: dict[str, int] = {}  # request id → maximum number of computed tokens so far

    def record(self, output: Output, running: Iterable[Request]) -> bool:
        """Record the output of one iteration and the requests that are running after it.

        Return True if there was progress.
        """
        progressed = _has_outcome(output) or self._computed_further(running)
        self.count += progressed
        return progressed

    def _computed_further(self, running: Iterable[Request]) -> bool:
        """Return True if the computed length of a running request exceeds its previous maximum.

        The cost is O(running requests); ``record`` therefore calls it only in iterations without an outcome.
        """
        marks: dict[str, int] = {}
        progressed = False
        for req in running:
            # A retraction stores the high-water mark in the request's history, so only marks of running requests are
            # kept.
            mark = max(self._marks.get(req.rid, 0), req.history.high_water)
            marks[req.rid] = max(mark, req.num_confirmed)
            progressed |= req.num_confirmed > mark
        self._marks = marks
        return progressed


def _has_outcome(output: Output) -> bool:
    """Return True if ``output`` has an output token, a finished request, or an abort because the KV pool is exhausted.

    Aborts by the client and refusals do not count.
    """
    return any(item.tokens or item.finish not in (None, "abort") for item in output.items) or any(
        abort.reason == "kv_cache_exhausted" for abort in output.aborts
    )


@dataclass(frozen=True, slots=True)
class WatchdogTimeouts:
    """Time limits in seconds."""

    hard_s: float  # time without progress until the process ends
    soft_s: float | None = None  # time without progress until a dump is written; None for no such dump
    load_s: float = 1800.0  # time limit for loading and compiling in total


class WatchdogAction(Enum):
    """The action that the watchdog must take."""

    DUMP = "dump"
    DUMP_AND_EXIT = "dump and exit"


class StallDetector:
    """Measures time without progress. Idle time and paused time do not count, and new work restarts the measurement."""

    def __init__(self, timeouts: WatchdogTimeouts) -> None:
        self._timeouts = timeouts
        self._seen: tuple[bool, int, int] | None = None
        self._since = 0.0
        self._soft_due = 0.0
        self.stalled_s = 0.0  # time without progress at the last check

    def check(self, status: LoopStatus, now: float) -> WatchdogAction | None:
        """Return the action that is due at ``now`` (seconds of a clock that stops while the process is suspended)."""
        loading = status.phase != "serving"
        seen = (loading, status.work_periods, status.progress)
        if seen != self._seen or not status.activity.expects_progress:
            self._seen, self._since = seen, now
            self._soft_due = self._timeouts.soft_s or 0.0
        self.stalled_s = now - self._since
        if not status.activity.expects_progress:
            return None
        if self.stalled_s >= (self._timeouts.load_s if loading else self._timeouts.hard_s):
            return WatchdogAction.DUMP_AND_EXIT
        return self._check_soft_timeout(loading=loading)

    def _check_soft_timeout(self, *, loading: bool) -> WatchdogAction | None:
        if loading or not self._soft_due or self.stalled_s < self._soft_due:
            return None
        self._soft_due = 2 * self.stalled_s  # during one stall, the interval between two dumps doubles
        return WatchdogAction.DUMP


class AdmissionStallDetector:
    """Detects that requests are waiting and none is admitted.

    A warning is due after ``alarm_s`` seconds, then at doubling intervals.
    """

    def __init__(self, alarm_s: float) -> None:
        self._alarm_s = alarm_s
        self._since: float | None = None
        self._blocked_since: float | None = None
        self._due_s = alarm_s

    def record(self, *, waits: bool, admitted: bool, blocked: bool, now: float) -> float | None:
        """Record one iteration.

        Returns the seconds since the last admission, or since the queue was empty, if a warning is due; else None.
        """
        if not blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        if not waits or admitted or self._since is None:
            self._since, self._due_s = (now if waits else None), self._alarm_s
            return None
        waited = now - self._since
        if waited < self._due_s:
            return None
        self._due_s = 2 * waited
        return waited

    def is_blocked_long(self, now: float) -> bool:
        """True if the loop has been blocked for ``alarm_s`` seconds or longer."""
        return self._blocked_since is not None and now - self._blocked_since >= self._alarm_s
