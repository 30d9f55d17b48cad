"""Writes one log line about the load every few seconds while there is work."""

from __future__ import annotations

import logging
from collections.abc import Callable

from .metrics import FrontMetrics

log = logging.getLogger(__name__)

TOTALS = ("generation_tokens_total", "prompt_tokens_total", "cached_tokens_total", "num_retracted_requests_total")


class LoadLog:
    """Writes the line when a snapshot arrives, so that it has no cost while the engine is idle.

    interval_s: seconds between two lines; 0 disables them.
    """

    def __init__(self, metrics: FrontMetrics, clock: Callable[[], float], interval_s: float) -> None:
        self._metrics = metrics
        self._clock = clock
        self._interval_s = interval_s
        self._since = clock()
        self._before = dict.fromkeys(TOTALS, 0.0)
        self._was_idle = True

    def on_snapshot(self) -> None:
        """Write a line if the interval has passed since the last line and since the engine became busy."""
        if not self._interval_s:
            return
        now = self._clock()
        gauges = self._metrics.gauges
        running, queued = gauges["num_running_reqs"], gauges["num_queue_reqs"]
        if self._was_idle:
            self._restart(now)
        elif now - self._since >= self._interval_s:
            self._write(now, running, queued)
            self._restart(now)
        self._was_idle = not (running or queued)

    def _restart(self, now: float) -> None:
        self._since = now
        self._before = {name: self._metrics.value(name) for name in TOTALS}

    def _write(self, now: float, running: float, queued: float) -> None:
        generated, prompt, cached, retractions = (self._metrics.value(name) - self._before[name] for name in TOTALS)
        seconds = now - self._since
        log.info(
            "%d running, %d queued (%d retracted); %.0f tokens/s out, %.0f tokens/s in; pool %.0f %%, "
            "cache hits %.0f %%, %d retractions",
            running,
            queued,
            self._metrics.gauges.get("num_retracted_reqs", 0.0),
            generated / seconds,
            prompt / seconds,
            100 * self._metrics.gauges["token_usage"],
            100 * cached / max(prompt, 1.0),
            retractions,
        )
