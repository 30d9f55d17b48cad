"""The Prometheus registry: fed by the scheduler's snapshots and by the front's own clocks. Owns every series."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.messages import Stats

from .metric_texts import BUCKETS, HISTOGRAM_TEXTS, KNOWN_LABELS, LATENCY_BUCKETS, TOTAL_TEXTS, text_of

PREFIX = "ebbtide:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KEY = re.compile(r"(?P<name>[a-z_0-9]+)(?:\{(?P<label>[a-z_]+)=(?P<value>[^{}]*)\})?")

# There from the start, so that a page scraped before the first snapshot has them.
LOAD_GAUGES = (
    *("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "num_grammar_queue_reqs"),
    *("token_usage", "gen_throughput"),
)
PLAIN_TOTALS = tuple(name for name in TOTAL_TEXTS if not any(key.startswith(f"{name}{{") for key in KNOWN_LABELS))


class _Snapshots:
    """The scheduler's last snapshot as a Prometheus collector; totals add up over scheduler lives."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.gauges: dict[str, float] = dict.fromkeys(LOAD_GAUGES, 0.0)
        self._last: dict[str, float] = dict.fromkeys((*PLAIN_TOTALS, *KNOWN_LABELS), 0.0)
        self._before: dict[str, float] = {}
        self.front_gauges: dict[str, Callable[[], float]] = {}

    def take(self, stats: Stats) -> None:
        """Replace the gauges; move the totals on, never back."""
        self.gauges.update(stats.gauges)
        for key, total in stats.totals.items():
            if total < self._last.get(key, 0.0):  # a new scheduler counts from zero
                self._before[key] = self._before.get(key, 0.0) + self._last[key]
            self._last[key] = total

    def gone(self) -> None:
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
                families[name] = kind(PREFIX + name, text_of(name), labels=labels)
            families[name].add_metric([self._model_name, *([parts["value"]] if label else [])], value)
        return families.values()


class FrontMetrics:
    """Everything behind /metrics of one served model."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._registry = CollectorRegistry(auto_describe=False)
        self._snapshots = _Snapshots(model_name)
        self._registry.register(self._snapshots)
        self.gauge("cache_hit_rate", self._snapshots.hit_rate)
        self._histograms: dict[str, Histogram] = {}
        for name in HISTOGRAM_TEXTS:
            self._histogram(name)

    @property
    def gauges(self) -> Mapping[str, float]:
        """The scheduler's gauges from its last snapshot, by key; read only."""
        return self._snapshots.gauges

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """A gauge of the front's own, read when scraped."""
        self._snapshots.front_gauges[name] = read

    def take(self, stats: Stats) -> None:
        """A snapshot from the scheduler."""
        self._snapshots.take(stats)
        for name, samples in stats.observations.items():
            histogram = self._histogram(name)
            for sample in samples:
                histogram.observe(sample)

    def scheduler_gone(self, num_open: int = 0) -> None:
        """Its gauges read 0 until the next snapshot: a load or a pool that nobody carries is none. Totals stay.

        num_open: requests that end with it.
        """
        self._snapshots.gone()
        if num_open:
            self._snapshots.add("num_aborted_requests_total{reason=engine_dead}", num_open)

    def first_token(self, seconds: float) -> None:
        """Time to the first generated token of an HTTP request."""
        self._histogram("time_to_first_token_seconds").observe(seconds)

    def token_gap(self, seconds: float, count: int) -> None:
        """``count`` tokens of a choice, each ``seconds`` after the one before."""
        histogram = self._histogram("inter_token_latency_seconds")
        for _ in range(count):
            histogram.observe(seconds)

    def completed(self, seconds: float) -> None:
        """A whole HTTP request that ended well."""
        self._histogram("e2e_request_latency_seconds").observe(seconds)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)

    async def route(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(self.render(), headers={"content-type": CONTENT_TYPE})

    def _histogram(self, name: str) -> Any:
        if name not in self._histograms:
            self._histograms[name] = Histogram(
                PREFIX + name,
                text_of(name),
                labelnames=["model_name"],
                buckets=BUCKETS.get(name, LATENCY_BUCKETS),
                registry=self._registry,
            )
        return self._histograms[name].labels(model_name=self._model_name)
