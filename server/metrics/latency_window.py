"""Latency samples of the last minute, for quantiles. They are kept only while a console is connected."""

from __future__ import annotations

import math
from collections import Counter, deque

SLICES = 60  # number of slices of a window
PER_FACTOR_OF_E = 20  # number of buckets per factor of e, so that the error of a quantile is at most 2.5 %
SHORTEST_S = 1e-6


class LatencyWindow:
    """Samples of the last ``SLICES`` slices. A slice lasts from one call of ``next_slice`` to the next."""

    def __init__(self) -> None:
        self._slices: deque[Counter[int]] = deque([Counter()], maxlen=SLICES)

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add ``count`` samples."""
        self._slices[-1][round(math.log(max(seconds, SHORTEST_S)) * PER_FACTOR_OF_E)] += count

    def next_slice(self) -> dict[str, float] | None:
        """Start a new slice. Return the result of ``figures`` for the slice that ends."""
        ended = self._slices[-1]
        self._slices.append(Counter())
        return figures(ended)

    def whole(self) -> dict[str, float] | None:
        """Return the result of ``figures`` for all slices together."""
        return figures(sum(self._slices, Counter()))


def figures(samples: Counter[int]) -> dict[str, float] | None:
    """Return the number of samples and two quantiles, in seconds; None if there is no sample."""
    num = samples.total()
    if not num:
        return None
    return {"num": num, "p50_s": _quantile(samples, 0.5 * num), "p95_s": _quantile(samples, 0.95 * num)}


def _quantile(samples: Counter[int], rank: float) -> float:
    """Return the value of the first bucket at which the cumulative number of samples reaches ``rank``."""
    seen = 0
    for bucket in sorted(samples):
        seen += samples[bucket]
        if seen >= rank:
            break
    return float(f"{math.exp(bucket / PER_FACTOR_OF_E):.4g}")
