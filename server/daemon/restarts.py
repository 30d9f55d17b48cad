"""How often a failed engine may be started again, and how long to wait before. Knows no processes."""

from __future__ import annotations

INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0


class Restarts:
    """At most ``limit`` in a daemon's life."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.num_started = 0

    @property
    def remaining(self) -> int:
        """How many there may still be."""
        return self._limit - self.num_started

    def next_delay_s(self) -> float:
        """Count one; the seconds to wait before it: what fails at once should not fail in a tight loop."""
        delay_s = min(INITIAL_BACKOFF_S * (1 << self.num_started), MAX_BACKOFF_S)
        self.num_started += 1
        return delay_s
