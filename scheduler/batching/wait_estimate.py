"""Estimates how long a new request will wait, from the times at which the last requests started.

The module reads no clock; the caller passes the current time, in seconds.
"""

from __future__ import annotations

from collections import deque

NUM_STARTS = 64  # number of starts that the rate is computed from
FEWEST_STARTS = 4  # with fewer starts, there is no estimate


class WaitEstimate:
    """The rate at which requests leave a queue that does not become empty."""

    def __init__(self) -> None:
        self._starts: deque[float] = deque(maxlen=NUM_STARTS)

    def started(self, count: int, now: float) -> None:
        """Record that ``count`` requests left the queue to run."""
        self._starts.extend([now] * count)

    def reset(self) -> None:
        """Forget the rate. Call it when a request enters an empty queue."""
        self._starts.clear()

    def expected_s(self, num_waiting: int, now: float) -> float:
        """Return the seconds until ``num_waiting`` requests have started; 0 if that is not known.

        The time since the last start counts, so the estimate grows while no request starts.
        """
        if num_waiting <= 0 or len(self._starts) < FEWEST_STARTS:
            return 0.0
        return num_waiting * (now - self._starts[0]) / len(self._starts)
