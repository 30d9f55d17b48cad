"""The distribution of output lengths: the probability that an output of n tokens reaches m tokens.

The estimate is a life table. Lengths are counted in bins whose width grows with the length. Recent completions have a
greater weight than old ones, and a request that was cut off or is still running counts as one that reached its bin.
Requests are grouped in kinds, by half octaves of max_tokens and octaves of the prompt length. The estimate for a kind
with few completions is pulled towards that of the more general kind that includes it, and the most general one towards
a prior. The cost of every operation is bounded by the number of bins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from ..request import Request

EDGES = (0, 8, 16, 24, 32, *(round(32 * 2 ** (step / 2)) for step in range(1, 25)))  # lower edges of the bins, tokens
NUM_BINS = len(EDGES)
HALF_LIFE = 512  # number of completions after which the weight of a completion is halved
BORROWED = 6.0  # weight of the more general kind in an estimate, in completions
PRIOR_MEDIAN = 160  # tokens; the prior is log-logistic: half of all outputs are longer
PRIOR_SHAPE = 1.5
REFRESH_CHANGES = 8  # a survival curve is computed again after this number of ends and reached bins

Kind = tuple[int, int]  # half octave of max_tokens, octave of the prompt length; -1 for "any"
ANY = -1


def bin_of(length: int) -> int:
    """Return the bin of an output length."""
    return bisect_right(EDGES, length) - 1


def _prior_hazards() -> list[float]:
    shares = [1 / (1 + (edge / PRIOR_MEDIAN) ** PRIOR_SHAPE) for edge in EDGES]
    return [*(1 - after / before for before, after in pairwise(shares)), 1.0]


class _LifeTable:
    """The completions of one kind of request."""

    def __init__(self) -> None:
        self.ended = [0.0] * NUM_BINS  # total weight of the requests that ended in the bin
        self.left = [0.0] * NUM_BINS  # total weight of the requests that were cut off in the bin
        self.running = [0] * NUM_BINS  # number of running requests in the bin
        self.age = 0  # number of times that a request ended, was cut off, or reached a bin
        self.computed_at = 0  # age at which ``curve`` was computed
        self.hazards: list[float] = []
        self.curve: list[float] = []  # share of requests whose outputs reach the lower edge of the bin

    def compute(self, weight: float, outer: list[float]) -> None:
        """Estimate the share of requests that end in a bin if they reach it. outer: that of the more general kind."""
        hazards = [0.0] * NUM_BINS
        reached = 0.0
        for number in range(NUM_BINS - 1, -1, -1):
            cut = self.left[number] + weight * self.running[number]
            at_risk = reached + self.ended[number] + cut / 2
            hazards[number] = (self.ended[number] + BORROWED * weight * outer[number]) / (at_risk + BORROWED * weight)
            reached += self.ended[number] + cut
        share, curve = 1.0, []
        for hazard in hazards:
            curve.append(share)
            share *= 1 - hazard
        self.hazards, self.curve = hazards, curve
        self.computed_at = self.age


class OutputLengths:
    """Estimates output lengths from requests that have ended or are running."""

    def __init__(self) -> None:
        self._tables: dict[Kind, _LifeTable] = {(ANY, ANY): _LifeTable()}
        self._weight = 1.0  # weight of the next completion
        self._growth = 2 ** (1 / HALF_LIFE)
        self._prior = _prior_hazards()

    def ended(self, req: Request, *, finished: bool) -> None:
        """See ``EndListener``. Requests with ``max_tokens`` 0 are not counted."""
        if req.sampling.max_tokens:
            cut = not finished or req.num_outputs >= req.sampling.max_tokens
            self._add(kind_of(req), req.num_outputs, cut=cut)

    def add(self, length: int) -> None:
        """Record that a request of unknown kind ended with ``length`` output tokens."""
        self._add((ANY, ANY), length, cut=False)

    def moved(self, kind: Kind, before: int | None, after: int | None) -> None:
        """Record the change of a running request's bin. before: None if it starts. after: None if it no longer runs."""
        for table in self._chain(kind):
            if before is not None:
                table.running[before] -= 1
            if after is not None:
                table.running[after] += 1
                table.age += 1

    def curve(self, kind: Kind) -> list[float]:
        """Return the share of requests of this kind whose outputs reach the lower edge of each bin."""
        outer = self._prior
        chain = self._chain(kind)
        for table in chain:
            if table.age - table.computed_at >= REFRESH_CHANGES or not table.curve:
                table.compute(self._weight, outer)
            outer = table.hazards
        return chain[-1].curve

    def _chain(self, kind: Kind) -> list[_LifeTable]:
        """Return the tables of all kinds that include ``kind``, the most general one first."""
        limit, prompt = kind
        keys = [(ANY, ANY)] if limit == ANY else [(ANY, ANY), (limit, ANY), (limit, prompt)]
        for key in keys:
            if key not in self._tables:
                self._tables[key] = _LifeTable()
        return [self._tables[key] for key in keys]

    def _add(self, kind: Kind, length: int, *, cut: bool) -> None:
        number = bin_of(length)
        for table in self._chain(kind):
            (table.left if cut else table.ended)[number] += self._weight
            table.age += 1
        self._weight *= self._growth
        if self._weight > 1e6:
            self._scale(1 / self._weight)

    def _scale(self, factor: float) -> None:
        for table in self._tables.values():
            table.ended = [weight * factor for weight in table.ended]
            table.left = [weight * factor for weight in table.left]
        self._weight *= factor


def kind_of(req: Request) -> Kind:
    """Return the kind of a request: the half octave of max_tokens, and the octave of the prompt length."""
    return (req.sampling.max_tokens**2).bit_length(), req.prompt_len.bit_length()


def survival(curve: list[float], lengths: Iterable[int]) -> list[float]:
    """Return, for each of the ascending ``lengths``, the share of requests whose outputs are longer."""
    shares = []
    number, last = 0, NUM_BINS - 1
    for length in lengths:
        while number < last and EDGES[number + 1] <= length:
            number += 1
        share = curve[number]
        if number < last:
            low, high = EDGES[number], EDGES[number + 1]
            share += (curve[number + 1] - share) * (length - low) / (high - low)
        shares.append(share)
    return shares
