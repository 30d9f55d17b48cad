"""A clock that stops while its process is stopped, so that the process then sees no false timeouts of its peers."""

from __future__ import annotations

from collections.abc import Callable


class SuspendAwareClock:
    """Counts the seconds during which this process was able to run. ``advance`` must be called regularly.

    At most ``longest_gap_s`` seconds count between two calls. A longer gap means that the process was stopped, the
    machine was suspended, or the machine was too busy to run it.
    """

    def __init__(self, clock: Callable[[], float], longest_gap_s: float) -> None:
        self._clock = clock
        self._longest_gap_s = longest_gap_s
        self._last = clock()
        self._awake = 0.0

    def advance(self) -> float:
        """Advance to the present and return the time."""
        now = self._clock()
        self._awake += min(now - self._last, self._longest_gap_s)
        self._last = now
        return self._awake

    def __call__(self) -> float:
        """Return the time without advancing."""
        return self._awake + min(self._clock() - self._last, self._longest_gap_s)
