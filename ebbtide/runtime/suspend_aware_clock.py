"""A clock that does not count the time during which its process is stopped.

With it, a process that was stopped does not report false timeouts of other processes.
"""

from __future__ import annotations

from collections.abc import Callable


class SuspendAwareClock:
    """Counts the seconds during which this process was able to run. ``advance`` must be called regularly.

    Between two calls of ``advance``, at most ``longest_gap_s`` seconds are counted: after a longer gap, the process was
    stopped, the machine was suspended, or the machine was too busy to run the process.
    """

    def __init__(self, clock: Callable[[], float], longest_gap_s: float) -> None:
        self._clock = clock
        self._longest_gap_s = longest_gap_s
        self._last = clock()
        self._awake = 0.0

    def advance(self) -> float:
        """Count the time since the last call, and return the total of the counted seconds."""
        now = self._clock()
        self._awake += min(now - self._last, self._longest_gap_s)
        self._last = now
        return self._awake

    def __call__(self) -> float:
        """Return the total of the counted seconds up to now, without recording the call."""
        return self._awake + min(self._clock() - self._last, self._longest_gap_s)
