"""Another engine's names over our numbers: nothing is counted twice, and a name means there what it means at home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ebbtide.errors import StartupError

from .compat_names import NAMINGS, Alias, Naming
from .histograms import Histograms
from .http_counts import HttpCounts
from .snapshots import Snapshots


def namings_of(names: str) -> list[Naming]:
    """The engines of a list such as "vllm,sglang". Raises StartupError for one that is not known or named twice."""
    wanted = names.split(",") if names else []
    if not set(wanted) <= set(NAMINGS) or len(set(wanted)) < len(wanted):
        raise StartupError(f"--metrics-compat takes {' and '.join(NAMINGS)}, separated by commas, not {names!r}.")
    return [NAMINGS[name] for name in wanted]


@dataclass(frozen=True, slots=True)
class CompatSeries:
    """The series of one naming for one model."""

    naming: Naming
    model_name: str
    context_length: int

    @property
    def labels(self) -> dict[str, str]:
        """On every sample."""
        return {"model_name": self.model_name, **dict(self.naming.labels)}

    def collector(self, numbers: Snapshots, http: HttpCounts) -> _Collector:
        """Gauges and counters, read when scraped."""
        return _Collector(self, numbers, http)

    def show_histograms(self, histograms: Histograms) -> None:
        """Their histograms take our samples."""
        for alias in self.naming.histograms:
            name, labels = self.naming.prefix + alias.name, {**self.labels, **dict(alias.labels)}
            histograms.show(alias.ours, name, _text((alias.ours,)), labels, alias.bounds(self.context_length))


@dataclass(frozen=True, slots=True)
class _Collector:
    series: CompatSeries
    numbers: Snapshots
    http: HttpCounts

    def collect(self) -> Iterator[Metric]:
        """One family per name."""
        naming = self.series.naming
        yield from self._families(GaugeMetricFamily, naming.gauges)
        yield from self._families(CounterMetricFamily, naming.totals)
        if naming.shows_http:
            yield from self.http.families(naming.prefix, self.series.labels)
        if naming.cache_info is not None:
            yield from self._cache_info(naming.prefix + naming.cache_info)

    def _families(self, kind: Any, aliases: Iterable[Alias]) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for alias in aliases:
            labels = {**self.series.labels, **dict(alias.labels)}
            if alias.name not in families:
                families[alias.name] = kind(
                    self.series.naming.prefix + alias.name, _text(alias.ours), labels=list(labels)
                )
            families[alias.name].add_metric(list(labels.values()), self._value(alias))
        return families.values()

    def _value(self, alias: Alias) -> float:
        value = sum(map(self.numbers.value, alias.ours)) - sum(map(self.numbers.value, alias.less))
        return max(value, 0.0)

    def _cache_info(self, name: str) -> Iterator[Metric]:
        """Sizes as labels, as other engines show them. Nothing while no engine has told its sizes."""
        page_size = int(self.numbers.value("page_size"))
        if page_size:
            num_pages = int(self.numbers.value("max_total_num_tokens")) // page_size
            labels = {**self.series.labels, "block_size": str(page_size), "num_gpu_blocks": str(num_pages)}
            family = GaugeMetricFamily(name, "Sizes of the KV pool, as labels.", labels=list(labels))
            family.add_metric(list(labels.values()), 1.0)
            yield family


def _text(ours: Iterable[str]) -> str:
    return f"What ebbtide calls {' and '.join(sorted({key.split('{')[0] for key in ours}))}."
