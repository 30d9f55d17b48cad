"""How often a failed engine may be started again, and how long to wait before. Knows no processes."""

from __future__ import annotations

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0


class Restarts:
    """At most ``limit`` in a daemon's life."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.done = 0

    @property
    def left(self) -> int:
        """How many there may still be."""
        return self._limit - self.done

    def begin(self) -> float:
        """Count one; the seconds to wait before it: what fails at once should not fail in a tight loop."""
        pause_s = min(FIRST_PAUSE_S * (1 << self.done), LONGEST_PAUSE_S)
        self.done += 1
        return pause_s
