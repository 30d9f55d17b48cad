"""The Prometheus registry: fed by the scheduler's snapshots and by the front's own clocks. Owns every series."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.messages import Stats

PREFIX = "ebbtide:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KEY = re.compile(r"(?P<name>[a-z_0-9]+)(?:\{(?P<label>[a-z_]+)=(?P<value>[^{}]*)\})?")

# Read 0 when the scheduler is gone: a load that nobody carries is no load.
LOAD_GAUGES = ("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "token_usage", "gen_throughput")
TOTALS = (
    "num_retracted_requests_total",
    "num_retracted_input_tokens_total",
    "num_retracted_output_tokens_total",
    "num_recomputed_tokens_total",
    "num_resumed_requests_total",
    "num_preempted_requests_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "generation_tokens_total",
    "evicted_tokens_total",
    "kv_invariant_violations_total",
)
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000, 2560)
COUNT_BUCKETS = (0, 1, 2, 3, 4, 5, 8, 16, 32)
BUCKETS = {"retractions_per_request": COUNT_BUCKETS}


class _Snapshots:
    """The scheduler's last snapshot as a Prometheus collector; totals add up over scheduler lives."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.gauges: dict[str, float] = dict.fromkeys(LOAD_GAUGES, 0.0)
        self._last: dict[str, float] = dict.fromkeys(TOTALS, 0.0)
        self._before: dict[str, float] = {}
        self.front_gauges: dict[str, Callable[[], float]] = {}

    def take(self, stats: Stats) -> None:
        """Replace the gauges; move the totals on, never back."""
        self.gauges.update(stats.gauges)
        for key, total in stats.totals.items():
            if total < self._last.get(key, 0.0):  # a new scheduler counts from zero
                self._before[key] = self._before.get(key, 0.0) + self._last[key]
            self._last[key] = total

    def collect(self) -> Iterator[Metric]:
        """All series, one family per name."""
        own = {name: read() for name, read in self.front_gauges.items()}
        yield from self._families(GaugeMetricFamily, {**self.gauges, **own})
        totals = {key: self._before.get(key, 0.0) + last for key, last in self._last.items()}
        yield from self._families(CounterMetricFamily, totals)

    def _families(self, kind: Any, values: dict[str, float]) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for key, value in values.items():
            parts = KEY.fullmatch(key)
            if parts is None:
                continue
            name, label = parts["name"], parts["label"]
            if name not in families:
                labels = ["model_name", *([label] if label else [])]
                families[name] = kind(PREFIX + name, name.replace("_", " "), labels=labels)
            families[name].add_metric([self._model_name, *([parts["value"]] if label else [])], value)
        return families.values()


class FrontMetrics:
    """Everything behind /metrics of one served model."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._registry = CollectorRegistry(auto_describe=False)
        self._snapshots = _Snapshots(model_name)
        self._registry.register(self._snapshots)
        self._histograms: dict[str, Histogram] = {}
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"):
            self._histogram(name)

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

    def scheduler_gone(self) -> None:
        """Load gauges read 0 until the next snapshot; totals stay."""
        self._snapshots.gauges.update(dict.fromkeys(LOAD_GAUGES, 0.0))

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
                name.replace("_", " "),
                labelnames=["model_name"],
                buckets=BUCKETS.get(name, LATENCY_BUCKETS),
                registry=self._registry,
            )
        return self._histograms[name].labels(model_name=self._model_name)
