"""The forecast of each pool's demand: how many tokens running requests will take and free, and how uncertain that is.

For each of a few horizons (output tokens from now), a pool needs the expected change of the memory that running
requests hold, and its variance. Both are sums over the requests. A request's terms are computed when it starts, when
its output reaches the next bin of ``output_lengths``, and after ``LONGEST_AGE`` steps; in between they change by a
constant per step. The cost of a step and of an evaluation is therefore proportional to the number of horizons, not to
the number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..memory.kv_pool import KvPool, promised_pages
from ..request import Request
from .output_lengths import EDGES, NUM_BINS, Kind, OutputLengths, bin_of, kind_of, survival

# Output tokens from now. Between two neighbouring horizons, the demand differs little from the demand at one of them.
HORIZONS = (0, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
NUM_HORIZONS = len(HORIZONS)
LONGEST_AGE = 128  # steps after which the terms of a request are computed again
PRESENT = NUM_HORIZONS * [0.0]


@dataclass(frozen=True, slots=True)
class Term:
    """What one request contributes to the sums of one pool, per horizon, in tokens.

    Attributes:
        change: expected change of the memory that the request holds.
        slope: the amount by which one more decoded token increases ``change``.
        variance: variance of the change.
    """

    change: list[float]
    slope: list[float]
    variance: list[float]


@dataclass(slots=True)
class _Entry:
    """A running request and its terms, one per pool."""

    req: Request
    kind: Kind
    bin: int
    step: int = 0  # the step at which the terms were computed
    rest: int = 0  # tokens up to max_tokens in that step
    terms: Sequence[Term] = ()


class _Sums:
    """The sums of one pool. ``change`` is extrapolated to step 0, so that a step need not update it."""

    def __init__(self) -> None:
        self.change, self.slope, self.variance = PRESENT[:], PRESENT[:], PRESENT[:]

    def add(self, term: Term, step: int, sign: float) -> None:
        """Add the term of a request, computed in step ``step``; subtract it if ``sign`` is -1."""
        change, slopes, variance = self.change, self.slope, self.variance
        for number, slope in enumerate(term.slope):
            change[number] += sign * (term.change[number] - step * slope)
            slopes[number] += sign * slope
            variance[number] += sign * term.variance[number]


class Forecast:
    """The demand of all running requests on all pools."""

    def __init__(self, pools: Sequence[KvPool], lengths: OutputLengths) -> None:
        self.pools = pools
        self._lengths = lengths
        self._sums = [_Sums() for _ in pools]
        self._entries: dict[str, _Entry] = {}
        self._partial: dict[str, _Entry] = {}  # requests in mid-prefill: their terms are computed in every step
        self._due: dict[int, list[_Entry]] = {}  # requests whose terms must be recomputed, by step
        self._step = 0

        self._rest = 0  # sum of the tokens up to max_tokens, as of step 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def rest(self) -> int:
        """Output tokens that the running requests may make until all have reached max_tokens."""
        return self._rest - self._step * len(self._entries)

    def missing(self, number: int, without: Sequence[Request] = ()) -> int:
        """Return how many pages the running requests lack for their known tokens. Visits every running request."""
        pool = self.pools[number]
        return sum(
            pool.missing_pages(entry.req, len(entry.req.known))
            for entry in self._entries.values()
            if entry.req not in without
        )

    def advance(self) -> None:
        """Record that a step with decode rows was planned."""
        self._step += 1
        for entry in self._due.pop(self._step, ()):
            if self._entries.get(entry.req.rid) is entry:  # otherwise the request has left, and may have started again
                self._partial[entry.req.rid] = entry

    def started(self, req: Request) -> None:
        """Add a request that has started to run."""
        kind, number = kind_of(req), bin_of(req.num_outputs)
        self._lengths.moved(kind, None, number)
        entry = self._entries[req.rid] = _Entry(req, kind, number)
        self._compute(entry)

    def left(self, req: Request) -> None:
        """Remove a request that no longer runs. Does nothing if it was not added."""
        entry = self._entries.pop(req.rid, None)
        if entry is None:
            return
        self._partial.pop(req.rid, None)
        self._lengths.moved(entry.kind, entry.bin, None)
        self._add(entry, -1.0)
        if not self._entries:  # discards accumulated rounding errors
            self._sums = [_Sums() for _ in self.pools]
            self._due.clear()
            self._rest = 0

    def refresh(self) -> None:
        """Recompute outdated terms. Call it before ``change`` and ``variance``."""
        outdated, self._partial = self._partial, {}
        for entry in outdated.values():
            self._add(entry, -1.0)
            self._compute(entry)

    def change(self, number: int, without: Sequence[Request] = ()) -> list[float]:
        """Return the expected change of the tokens held in a pool, per horizon.

        without: running requests to leave out.
        """
        sums = self._sums[number]
        change = [change + self._step * slope for change, slope in zip(sums.change, sums.slope, strict=True)]
        for entry in self._entries_of(without):
            term, age = entry.terms[number], self._step - entry.step
            for place in range(NUM_HORIZONS):
                change[place] -= term.change[place] + age * term.slope[place]
        return change

    def variance(self, number: int, without: Sequence[Request] = ()) -> list[float]:
        """Return the variance of the change, per horizon. See ``change``."""
        variance = self._sums[number].variance[:]
        for entry in self._entries_of(without):
            for place, removed in enumerate(entry.terms[number].variance):
                variance[place] -= removed
        return variance

    def _entries_of(self, requests: Sequence[Request]) -> list[_Entry]:
        return [self._entries[req.rid] for req in requests if req.rid in self._entries]

    def candidate(self, req: Request, locked: Sequence[int]) -> list[Term]:
        """Return the terms that ``req`` would have if it started. locked: its already locked pages, per pool."""
        alive = self._alive(req, kind_of(req))
        terms = []
        for pool, pages in zip(self.pools, locked, strict=True):
            terms.append(self._term(req, pool, alive, held=pages * pool.page_size, own=0, first=req.max_samples))
        return terms

    def _compute(self, entry: _Entry) -> None:
        """Compute the terms of a running request and add them to the sums."""
        req = entry.req
        number = bin_of(req.num_outputs)
        if number != entry.bin:
            self._lengths.moved(entry.kind, entry.bin, number)
            entry.bin = number
        entry.step = self._step
        entry.rest = req.sampling.max_tokens - req.num_outputs
        partial = req.computed < len(req.known) - 1
        if partial:
            self._partial[req.rid] = entry
        else:
            edge = EDGES[number + 1] - req.num_outputs if number + 1 < NUM_BINS else LONGEST_AGE
            self._due.setdefault(self._step + min(edge, LONGEST_AGE), []).append(entry)
        alive = self._alive(req, entry.kind)
        entry.terms = [self._running_term(req, pool, alive) for pool in self.pools]
        self._add(entry, 1.0)

    def _running_term(self, req: Request, pool: KvPool, alive: list[float]) -> Term:
        size = pool.page_size
        held = pool.num_pages(req) * size
        if req.protected:
            missing = float(max(promised_pages(pool, req) * size - held, 0))
            return Term([missing] * NUM_HORIZONS, PRESENT, PRESENT)
        own = pool.freed_by(req) * size
        if req.is_decoding and held + size <= req.computed:  # pages behind a window are freed as new ones are taken
            change = [(share - 1) * own for share in alive]
            return Term(change, PRESENT, [share * (1 - share) * own * own for share in alive])
        return self._term(req, pool, alive, held=held, own=own, first=0)

    def _alive(self, req: Request, kind: Kind) -> list[float]:
        """Return the probability that ``req`` still runs after each horizon."""
        outputs = req.num_outputs
        rest = req.sampling.max_tokens - outputs
        shares = survival(self._lengths.curve(kind), [outputs + horizon for horizon in HORIZONS])
        now = max(shares[0], 1e-12)
        pairs = zip(shares, HORIZONS, strict=True)
        return [1.0 if not horizon else share / now if horizon < rest else 0.0 for share, horizon in pairs]

    def _term(self, req: Request, pool: KvPool, alive: list[float], *, held: int, own: int, first: int) -> Term:
        """Return the term of a request in one pool.

        Args:
            req: the request.
            pool: the pool.
            alive: the probability that it still runs, per horizon.
            held: tokens that its pages hold.
            own: tokens of the pages that become usable when it ends.
            first: minimum number of tokens by which it grows at every horizon.
        """
        size, known, most = pool.page_size, len(req.known), req.max_kv_tokens
        grows = pool.pages_for(known + size) > pool.pages_for(known)  # False if the request already fills its window
        change, variance = [], []
        for share, horizon in zip(alive, HORIZONS, strict=True):
            needed = pool.pages_for(min(known + max(horizon, first), most)) * size - held + own
            change.append(share * needed - own)
            variance.append(share * (1 - share) * needed * needed)
        return Term(change, [share - 1 for share in alive] if grows else PRESENT, variance)

    def _add(self, entry: _Entry, sign: float) -> None:
        for sums, term in zip(self._sums, entry.terms, strict=True):
            sums.add(term, entry.step, sign)
        self._rest += round(sign) * (entry.rest + entry.step)
