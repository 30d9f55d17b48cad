"""Histograms that cost little to fill: one is observed for every token. All of it happens on one thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

_as_go: Callable[[float], str] = floatToGoString  # 1e+06, as every other client of Prometheus spells it


class Buckets:
    """How many samples lie at or below each of the ``bounds``, which ascend; infinity is added."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int) -> None:
        """``count`` samples of ``value``."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Show them as one metric of a family."""
        bounds = [_as_go(bound) for bound in (*self._bounds, float("inf"))]
        family.add_metric(labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)


class Histograms:
    """Samples by quantity, and the names under which they are shown: a collector."""

    def __init__(self) -> None:
        self._quantities: dict[str, dict[tuple[float, ...], Buckets]] = {}
        self._registered: list[tuple[str, str, dict[str, str], Buckets]] = []

    def __contains__(self, quantity: str) -> bool:
        return quantity in self._quantities

    def register(
        self, quantity: str, name: str, text: str, labels: Mapping[str, str], bounds: tuple[float, ...]
    ) -> None:
        """From now on the samples of ``quantity`` are there as ``name`` too. Equal buckets are filled once."""
        kinds = self._quantities.setdefault(quantity, {})
        buckets = kinds.setdefault(bounds, Buckets(bounds))
        self._registered.append((name, text, dict(labels), buckets))

    def observe(self, quantity: str, value: float, count: int = 1) -> None:
        """``count`` samples of a quantity that is shown."""
        for buckets in self._quantities[quantity].values():
            buckets.observe(value, count)

    def collect(self) -> Iterator[Metric]:
        """One family per name."""
        families: dict[str, HistogramMetricFamily] = {}
        for name, text, labels, buckets in self._registered:
            if name not in families:
                families[name] = HistogramMetricFamily(name, text, labels=list(labels))
            buckets.add_to(families[name], list(labels.values()))
        yield from families.values()
