"""Counts the restarts of a failed engine and computes the backoff between them."""

from __future__ import annotations

INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0


class Restarts:
    """Counts restarts, of which ``limit`` are allowed during the lifetime of the daemon."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.num_started = 0

    @property
    def remaining(self) -> int:
        """Number of restarts that are still allowed."""
        return self._limit - self.num_started

    def record_restart(self) -> float:
        """Count a restart. Return the number of seconds to wait before it (exponential backoff)."""
        delay_s = min(INITIAL_BACKOFF_S * (1 << self.num_started), MAX_BACKOFF_S)
        self.num_started += 1
        return delay_s
