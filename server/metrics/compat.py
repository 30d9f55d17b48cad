"""Exports metrics under the names of vLLM or SGLang, with the meaning that the names have in that server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ebbtide.errors import StartupError

from .compat_names import ENGINE_ALIASES, Alias, MetricAliases
from .histograms import Histograms
from .http_counts import HttpCounts
from .snapshots import Snapshots


def parse_metric_aliases(names: str) -> list[MetricAliases]:
    """Parse a comma-separated list such as "vllm,sglang". Raises StartupError if a name is unknown or repeated."""
    wanted = names.split(",") if names else []
    if not set(wanted) <= set(ENGINE_ALIASES) or len(set(wanted)) < len(wanted):
        raise StartupError(
            f"--metrics-compat must be a comma-separated list of {' and '.join(ENGINE_ALIASES)}, not {names!r}."
        )
    return [ENGINE_ALIASES[name] for name in wanted]


@dataclass(frozen=True, slots=True)
class CompatSeries:
    """The series that are exported under the metric names of one engine."""

    aliases: MetricAliases
    model_name: str
    context_length: int

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every sample."""
        return {"model_name": self.model_name, **dict(self.aliases.labels)}

    def collector(self, snapshots: Snapshots, http: HttpCounts) -> _Collector:
        """Return a collector that reads the gauges and counters at each scrape."""
        return _Collector(self, snapshots, http)

    def register_histograms(self, histograms: Histograms) -> None:
        """Export ebbtide's histograms under the names of the other engine."""
        for alias in self.aliases.histograms:
            name, labels = self.aliases.prefix + alias.name, {**self.labels, **dict(alias.labels)}
            histograms.register(alias.ours, name, _help_text((alias.ours,)), labels, alias.bounds(self.context_length))


@dataclass(frozen=True, slots=True)
class _Collector:
    series: CompatSeries
    snapshots: Snapshots
    http: HttpCounts

    def collect(self) -> Iterator[Metric]:
        """Yield one family per name."""
        aliases = self.series.aliases
        yield from self._families(GaugeMetricFamily, aliases.gauges)
        yield from self._families(CounterMetricFamily, aliases.totals)
        if aliases.includes_http:
            yield from self.http.families(aliases.prefix, self.series.labels)
        if aliases.cache_info is not None:
            yield from self._cache_info(aliases.prefix + aliases.cache_info)

    def _families(self, kind: Any, aliases: Iterable[Alias]) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for alias in aliases:
            labels = {**self.series.labels, **dict(alias.labels)}
            if alias.name not in families:
                families[alias.name] = kind(
                    self.series.aliases.prefix + alias.name, _help_text(alias.ours), labels=list(labels)
                )
            families[alias.name].add_metric(list(labels.values()), self._value(alias))
        return families.values()

    def _value(self, alias: Alias) -> float:
        value = sum(map(self.snapshots.value, alias.ours)) - sum(map(self.snapshots.value, alias.minus))
        return max(value, 0.0)

    def _cache_info(self, name: str) -> Iterator[Metric]:
        """Yield a gauge with the pool sizes as labels. Yields nothing before the first snapshot."""
        page_size = int(self.snapshots.value("page_size"))
        if page_size:
            num_pages = int(self.snapshots.value("max_total_num_tokens")) // page_size
            labels = {**self.series.labels, "block_size": str(page_size), "num_gpu_blocks": str(num_pages)}
            family = GaugeMetricFamily(name, "Sizes of the KV pool, as labels.", labels=list(labels))
            family.add_metric(list(labels.values()), 1.0)
            yield family


def _help_text(ours: Iterable[str]) -> str:
    return f"Same as ebbtide's {' and '.join(sorted({key.split('{')[0] for key in ours}))}."
