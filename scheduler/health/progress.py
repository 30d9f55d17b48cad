"""What counts as progress, what the loop says of itself, and when silence has lasted too long.

Progress is a token, a finish, or a prompt computed further than ever: a long first prefill is progress, computing again
after a retraction is not. Clocks are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..request import Request
from ..state import Output


class Activity(Enum):
    """What the loop does. BLOCKED: requests wait, nothing runs and nothing is on its way. PAUSED: as it was told."""

    RUNNING = "running"
    BLOCKED = "blocked"
    IDLE = "idle"
    PAUSED = "paused"

    @property
    def may_rest(self) -> bool:
        """Whether no progress is nothing to worry about."""
        return self in (Activity.IDLE, Activity.PAUSED)


@dataclass(frozen=True, slots=True)
class Pulse:
    """The loop's state in a few numbers, replaced as a whole.

    phase: "serving", or what is loaded or compiled. work: how often idleness has ended. progress: a count that grows.
    """

    phase: str
    activity: Activity
    work: int = 0
    progress: int = 0
    forward_ct: int = 0


class Progress:
    """Counts the turns of the loop that brought the work forward."""

    def __init__(self) -> None:
        self.count = 0
        self._marks: dict[str, int] = {}  # how far requests were computed in turns without a token

    def saw(self, output: Output, running: Iterable[Request]) -> bool:
        """One turn's output and the requests that run after it; whether it brought anything forward."""
        moved = _has_outcome(output) or self._computed_further(running)
        self.count += moved
        return moved

    def _computed_further(self, running: Iterable[Request]) -> bool:
        """Walks the requests: asked only of turns without a token, of which a wedge or a long prefill is made."""
        marks: dict[str, int] = {}
        moved = False
        for req in running:
            # A retraction writes the high water mark, so a mark may be forgotten when its request leaves the rows.
            mark = max(self._marks.get(req.rid, 0), req.history.high_water)
            marks[req.rid] = max(mark, req.num_confirmed)
            moved |= req.num_confirmed > mark
        self._marks = marks
        return moved


def _has_outcome(output: Output) -> bool:
    """A token, a finish, or a request given up with an answer. A client's abort and a refusal move nothing on."""
    return any(item.tokens or item.finish not in (None, "abort") for item in output.items) or any(
        abort.reason == "kv_cache_exhausted" for abort in output.aborts
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: without progress until the end, until a dump only (None: never), and for loading as a whole."""

    hard_s: float
    soft_s: float | None = None
    load_s: float = 1800.0


class Alarm(Enum):
    """What silence calls for."""

    SOFT = "dump"
    HARD = "dump and end"


class Judge:
    """Compares one pulse with the next. Time at rest never counts, and each time work begins the patience is whole."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._seen: tuple[bool, int, int] | None = None
        self._since = 0.0
        self._soft_due = 0.0
        self.stalled_s = 0.0  # at the last look

    def look(self, pulse: Pulse, now: float) -> Alarm | None:
        """What the time ``now`` (seconds of a clock that only this process's own time moves) calls for."""
        loading = pulse.phase != "serving"
        seen = (loading, pulse.work, pulse.progress)
        if seen != self._seen or pulse.activity.may_rest:
            self._seen, self._since = seen, now
            self._soft_due = self._patience.soft_s or 0.0
        self.stalled_s = now - self._since
        if pulse.activity.may_rest:
            return None
        if self.stalled_s >= (self._patience.load_s if loading else self._patience.hard_s):
            return Alarm.HARD
        return self._soft(loading=loading)

    def _soft(self, *, loading: bool) -> Alarm | None:
        if loading or not self._soft_due or self.stalled_s < self._soft_due:
            return None
        self._soft_due = 2 * self.stalled_s  # a wedge that lasts is told of at growing intervals
        return Alarm.SOFT


class AdmissionAlarm:
    """Notices that requests wait and none is admitted: after ``alarm_s`` seconds, then at doubling intervals."""

    def __init__(self, alarm_s: float) -> None:
        self._alarm_s = alarm_s
        self._since: float | None = None
        self._blocked_since: float | None = None
        self._due_s = alarm_s

    def look(self, *, waits: bool, admitted: bool, blocked: bool, now: float) -> float | None:
        """One turn; the seconds since an admission when they are worth a line now."""
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

    def blocked_long(self, now: float) -> bool:
        """Whether nothing could run for the alarm's time."""
        return self._blocked_since is not None and now - self._blocked_since >= self._alarm_s
