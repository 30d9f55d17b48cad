"""The Prometheus registry, which gets its values from the scheduler's snapshots and from the front process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.messages import Stats

from .compat import CompatSeries
from .compat_names import MetricAliases
from .help_texts import HISTOGRAM_TEXTS, PREFIX, bucket_bounds, help_text
from .histograms import Histograms
from .http_counts import HttpCounts
from .latency_window import LatencyWindow
from .snapshots import RECEIVED, Snapshots

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONTEXT_LENGTH = 131_072
TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class LatencyWindows:
    """The recent times to the first token, and the recent times between two tokens."""

    first_token: LatencyWindow = field(default_factory=LatencyWindow)
    token_gap: LatencyWindow = field(default_factory=LatencyWindow)


class FrontMetrics:
    """All metrics of the served model.

    Attributes:
        windows: if not None, latencies are recorded here, too. The console sets it while a viewer is connected.
    """

    def __init__(
        self, model_name: str, engines: Iterable[MetricAliases] = (), context_length: int = CONTEXT_LENGTH
    ) -> None:
        self._model_name = model_name
        self._context_length = context_length
        self._registry = CollectorRegistry(auto_describe=False)
        self._snapshots = Snapshots(model_name)
        self.http = HttpCounts()
        self.windows: LatencyWindows | None = None
        self._histograms = Histograms()
        for own in (self._snapshots, self._histograms):
            self._registry.register(own)
        self._registry.register(_HttpCollector(self.http, model_name))
        self.gauge("cache_hit_rate", self._snapshots.hit_rate)
        for name in HISTOGRAM_TEXTS:
            self._register(name)
        for aliases in engines:
            self._register_aliases(aliases)

    @property
    def gauges(self) -> Mapping[str, float]:
        """The scheduler's gauges from its last snapshot, by key. Read-only."""
        return self._snapshots.gauges

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens so far that were found in the prefix cache."""
        return self._snapshots.hit_rate()

    def total(self, name: str) -> float:
        """Return a total over all scheduler restarts.

        A name without its label returns the sum over all label values.
        """
        return self._snapshots.value(name)

    def value(self, name: str) -> float:
        """Return the current value of a gauge or total; 0 if the name is unknown."""
        return self._snapshots.value(name)

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Register a gauge of the front process.

        read: returns the value; called at each scrape.
        """
        self._snapshots.front_gauges[name] = read

    def counter(self, name: str, read: Callable[[], float]) -> None:
        """Register a total of the front process that another object counts. read: called at each scrape."""
        self._snapshots.front_totals[name] = read

    def apply_stats(self, stats: Stats) -> None:
        """Apply a snapshot from the scheduler."""
        self._snapshots.apply(stats)
        for name, samples in stats.observations.items():
            for sample in samples:
                self.observe(name, sample)

    def observe(self, name: str, value: float, count: int = 1) -> None:
        """Add ``count`` samples to a histogram, under all its names."""
        if name not in self._histograms:
            self._register(name)
        self._histograms.observe(name, value, count)

    def on_scheduler_death(self, num_sent: int = 0) -> None:
        """Set the scheduler's gauges to 0 until the next snapshot, and count the requests that it had not finished.

        num_sent: number of requests that were sent to this scheduler. Those whose end is not in its last snapshot are
            counted as aborted.
        """
        self._snapshots.on_scheduler_death(num_sent)

    @contextmanager
    def count_refusals(self) -> Iterator[None]:
        """If the block rejects a request as too long, count the request as if the scheduler had rejected it."""
        try:
            yield
        except Rejected as error:
            if error.code == TOO_LONG:
                self._snapshots.add(RECEIVED, 1)
                self._snapshots.add(f"num_aborted_requests_total{{reason={TOO_LONG}}}", 1)
            raise

    def count_embeddings(self, num_inputs: int, num_tokens: int) -> None:
        """Count an answered request for embeddings or scores."""
        self._snapshots.add("embedding_requests_total", 1)
        self._snapshots.add("embedding_inputs_total", num_inputs)
        self._snapshots.add("embedding_tokens_total", num_tokens)

    def observe_request(self, n: int, max_tokens: Iterable[int]) -> None:
        """Record a request for ``n`` choices of each prompt.

        max_tokens: one value per prompt.
        """
        for count in max_tokens:
            self.observe("request_params_n", n)
            self.observe("request_params_max_tokens", count)

    def observe_first_token(self, seconds: float) -> None:
        """Record the time to the first generated token of an HTTP request."""
        self.observe("time_to_first_token_seconds", seconds)
        if self.windows is not None:
            self.windows.first_token.observe(seconds)

    def observe_token_gap(self, seconds: float, count: int) -> None:
        """Record ``count`` tokens of a choice, each ``seconds`` after the previous one."""
        self.observe("inter_token_latency_seconds", seconds, count)
        if self.windows is not None:
            self.windows.token_gap.observe(seconds, count)

    def observe_completion(self, seconds: float) -> None:
        """Record the total time of an HTTP request that ended normally."""
        self.observe("e2e_request_latency_seconds", seconds)

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    async def route(self, _: Request) -> Response:
        """Show all metrics in the Prometheus text format."""
        return Response(self.render(), headers={"content-type": CONTENT_TYPE})

    def _register(self, name: str) -> None:
        labels = {"model_name": self._model_name}
        self._histograms.register(
            name, PREFIX + name, help_text(name), labels, bucket_bounds(name, self._context_length)
        )

    def _register_aliases(self, aliases: MetricAliases) -> None:
        """Export the metrics under the names of another engine, too."""
        series = CompatSeries(aliases, self._model_name, self._context_length)
        self._registry.register(series.collector(self._snapshots, self.http))
        series.register_histograms(self._histograms)


@dataclass(frozen=True, slots=True)
class _HttpCollector:
    """A Prometheus collector of the values in ``HttpCounts``."""

    counts: HttpCounts
    model_name: str

    def collect(self) -> Iterator[Metric]:
        """Yield the counts under ebbtide's names."""
        return self.counts.families(PREFIX, {"model_name": self.model_name})
