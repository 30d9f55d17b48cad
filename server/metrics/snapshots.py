"""The scheduler's snapshots as a Prometheus collector: gauges of now, totals over all scheduler lives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ebbtide.messages import Stats

from .help_texts import KNOWN_LABELS, LABELS, PREFIX, TOTAL_TEXTS, help_text

KEY = re.compile(r"(?P<name>[a-z_0-9]+)(?:\{(?P<label>[a-z_]+)=(?P<value>[^{}]*)\})?")

# There from the start, so that a page scraped before the first snapshot has them.
LOAD_GAUGES = (
    *("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "num_grammar_queue_reqs"),
    *("token_usage", "gen_throughput"),
)
PLAIN_TOTALS = tuple(name for name in TOTAL_TEXTS if name not in LABELS)


class Snapshots:
    """The last snapshot and what the schedulers before this one counted. Keys are those of ``messages.Stats``."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.gauges: dict[str, float] = dict.fromkeys(LOAD_GAUGES, 0.0)
        self._last: dict[str, float] = dict.fromkeys((*PLAIN_TOTALS, *KNOWN_LABELS), 0.0)
        self._before: dict[str, float] = {}
        self.front_gauges: dict[str, Callable[[], float]] = {}

    def apply(self, stats: Stats) -> None:
        """Replace the gauges; move the totals on, never back."""
        self.gauges.update(stats.gauges)
        for key, total in stats.totals.items():
            if total < self._last.get(key, 0.0):  # a new scheduler counts from zero
                self._before[key] = self._before.get(key, 0.0) + self._last[key]
            self._last[key] = total

    def on_scheduler_death(self) -> None:
        """The scheduler counts no more; another one would begin at zero. Who was retracted has ended with it."""
        lost = self.gauges.get("num_retracted_reqs", 0.0)
        if lost:
            self.add("num_ended_while_retracted_total{reason=engine_dead}", lost)
        self.gauges.update(dict.fromkeys(self.gauges, 0.0))
        for key, total in self._last.items():
            self._before[key] = self._before.get(key, 0.0) + total
            self._last[key] = 0.0

    def add(self, key: str, amount: float) -> None:
        """Count what no scheduler can count any more."""
        self._before[key] = self._before.get(key, 0.0) + amount
        self._last.setdefault(key, 0.0)

    def total(self, key: str) -> float:
        """One total over all scheduler lives."""
        return self._before.get(key, 0.0) + self._last.get(key, 0.0)

    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.total("cached_tokens_total") / max(self.total("prompt_tokens_total"), 1.0)

    def value(self, key: str) -> float:
        """A gauge or a total; of a name without its label, all of them together. 0 for what there is not yet."""
        if key in self.front_gauges:
            return self.front_gauges[key]()
        if key in self.gauges:
            return self.gauges[key]
        return self.total(key) + sum(self.total(other) for other in self._last if other.startswith(f"{key}{{"))

    def collect(self) -> Iterator[Metric]:
        """All series, one family per name."""
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
