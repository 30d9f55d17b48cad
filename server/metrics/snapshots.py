"""A Prometheus collector of the scheduler's snapshots: current gauges, and totals over all scheduler restarts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ebbtide.messages import Stats

from .help_texts import KNOWN_LABELS, LABELS, PREFIX, TOTAL_TEXTS, help_text

KEY = re.compile(r"(?P<name>[a-z_0-9]+)(?:\{(?P<label>[a-z_]+)=(?P<value>[^{}]*)\})?")

# Exported from the start, before the first snapshot.
LOAD_GAUGES = (
    *("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "num_grammar_queue_reqs"),
    *("token_usage", "gen_throughput", "expected_queue_seconds"),
)
RECEIVED = "num_received_requests_total"
PLAIN_TOTALS = tuple(name for name in TOTAL_TEXTS if name not in LABELS)


class Snapshots:
    """The last snapshot, and the totals of earlier scheduler processes. The keys are those of ``messages.Stats``."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.gauges: dict[str, float] = dict.fromkeys(LOAD_GAUGES, 0.0)
        self._last: dict[str, float] = dict.fromkeys((*PLAIN_TOTALS, *KNOWN_LABELS), 0.0)
        self._before: dict[str, float] = {}
        self.front_gauges: dict[str, Callable[[], float]] = {}
        self.front_totals: dict[str, Callable[[], float]] = {}  # counted outside of this class

    def apply(self, stats: Stats) -> None:
        """Replace the gauges and update the totals, which never decrease."""
        self.gauges.update(stats.gauges)
        for key, total in stats.totals.items():
            if total < self._last.get(key, 0.0):  # a new scheduler counts from zero
                self._before[key] = self._before.get(key, 0.0) + self._last[key]
            self._last[key] = total

    def on_scheduler_death(self, num_sent: int = 0) -> None:
        """Keep the totals, set the gauges to 0, and count requests that had not ended as aborted.

        num_sent: number of requests that were sent to this scheduler. Those that its last snapshot does not contain
            are counted as received.
        """
        num_unseen = max(num_sent - self._last[RECEIVED], 0.0)
        num_lost = self.gauges["num_running_reqs"] + self.gauges["num_queue_reqs"] + num_unseen
        self.add(RECEIVED, num_unseen)
        if num_lost:
            self.add("num_aborted_requests_total{reason=engine_dead}", num_lost)
        num_retracted = self.gauges.get("num_retracted_reqs", 0.0)
        if num_retracted:
            self.add("num_ended_while_retracted_total{reason=engine_dead}", num_retracted)
        self.gauges.update(dict.fromkeys(self.gauges, 0.0))
        for key, total in self._last.items():
            self._before[key] = self._before.get(key, 0.0) + total
            self._last[key] = 0.0

    def add(self, key: str, amount: float) -> None:
        """Add ``amount`` to a total, for events in the front process that the scheduler does not see."""
        self._before[key] = self._before.get(key, 0.0) + amount
        self._last.setdefault(key, 0.0)

    def total(self, key: str) -> float:
        """Return a total over all scheduler restarts."""
        if key in self.front_totals:
            return self.front_totals[key]()
        return self._before.get(key, 0.0) + self._last.get(key, 0.0)

    def hit_rate(self) -> float:
        """Return the share of prompt tokens that were found in the prefix cache."""
        return self.total("cached_tokens_total") / max(self.total("prompt_tokens_total"), 1.0)

    def value(self, key: str) -> float:
        """Return a gauge or total; 0 if the name is unknown.

        A name without its label returns the sum over all label values.
        """
        if key in self.front_gauges:
            return self.front_gauges[key]()
        if key in self.gauges:
            return self.gauges[key]
        return self.total(key) + sum(self.total(other) for other in self._last if other.startswith(f"{key}{{"))

    def collect(self) -> Iterator[Metric]:
        """Yield all series, one family per name."""
        own = {name: read() for name, read in self.front_gauges.items()}
        yield from self._families(GaugeMetricFamily, {**self.gauges, **own})
        yield from self._families(CounterMetricFamily, {key: self.total(key) for key in self._last})

    def _families(self, kind: Any, values: dict[str, float]) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for key, value in values.items():
            parts = KEY.fullmatch(key)
            if parts is None:
                continue
            name, label = parts["name"], parts["label"]
            if name not in families:
                labels = ["model_name", *([label] if label else [])]
                families[name] = kind(PREFIX + name, help_text(name), labels=labels)
            families[name].add_metric([self._model_name, *([parts["value"]] if label else [])], value)
        return families.values()
