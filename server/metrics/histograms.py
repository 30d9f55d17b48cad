"""Histograms with fast updates, because some are updated for every token. The module is not thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

_as_go: Callable[[float], str] = floatToGoString  # formats a bound such as 1e+06 like other Prometheus clients


class Buckets:
    """Counts samples per bucket.

    bounds: the upper bounds in ascending order, excluding infinity.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int) -> None:
        """Add ``count`` samples of ``value``."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        """Add the buckets to a metric family, as one metric with ``labels``."""
        bounds = [_as_go(bound) for bound in (*self._bounds, float("inf"))]
        family.add_metric(labels, list(zip(bounds, accumulate(self._counts), strict=True)), self._sum)


class Histograms:
    """A Prometheus collector of histograms. A quantity may be exported under several names."""

    def __init__(self) -> None:
        self._quantities: dict[str, dict[tuple[float, ...], Buckets]] = {}
        self._registered: list[tuple[str, str, dict[str, str], Buckets]] = []

    def __contains__(self, quantity: str) -> bool:
        return quantity in self._quantities

    def register(
        self, quantity: str, name: str, text: str, labels: Mapping[str, str], bounds: tuple[float, ...]
    ) -> None:
        """Export the samples of ``quantity`` as ``name``. Names with equal bounds share their buckets."""
        kinds = self._quantities.setdefault(quantity, {})
        buckets = kinds.setdefault(bounds, Buckets(bounds))
        self._registered.append((name, text, dict(labels), buckets))

    def observe(self, quantity: str, value: float, count: int = 1) -> None:
        """Add ``count`` samples of a registered quantity."""
        for buckets in self._quantities[quantity].values():
            buckets.observe(value, count)

    def collect(self) -> Iterator[Metric]:
        """Yield one family per name."""
        families: dict[str, HistogramMetricFamily] = {}
        for name, text, labels, buckets in self._registered:
            if name not in families:
                families[name] = HistogramMetricFamily(name, text, labels=list(labels))
            buckets.add_to(families[name], list(labels.values()))
        yield from families.values()
