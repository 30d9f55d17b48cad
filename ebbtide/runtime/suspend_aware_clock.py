"""A clock that stands still while its process does: who was stopped must not take the others' silence for death."""

from __future__ import annotations

from collections.abc import Callable


class SuspendAwareClock:
    """Seconds of ``clock`` in which this process could look, counted by regular calls of ``advance``.

    Between two calls at most ``longest_gap_s`` seconds pass: the rest of a longer gap is one in which the process was
    stopped, or the machine suspended, or so busy that it saw nothing.
    """

    def __init__(self, clock: Callable[[], float], longest_gap_s: float) -> None:
        self._clock = clock
        self._longest_gap_s = longest_gap_s
        self._last = clock()
        self._awake = 0.0

    def advance(self) -> float:
        """Move on to now; the time."""
        now = self._clock()
        self._awake += min(now - self._last, self._longest_gap_s)
        self._last = now
        return self._awake

    def __call__(self) -> float:
        """The time, without moving on."""
        return self._awake + min(self._clock() - self._last, self._longest_gap_s)
