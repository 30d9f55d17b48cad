"""Admission: decides if a waiting request may start now, and reserves memory for running and protected requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import sqrt
from statistics import NormalDist

from ..memory.kv_pool import KvPool, promised_pages
from ..memory.pool import Pool
from ..memory.prefix_cache import MatchResult
from ..request import Request
from .forecast import HORIZONS, Forecast
from .new_token_ratio import NewTokenRatio
from .output_lengths import OutputLengths

DEFAULT_RISK = 0.03  # see docs/decisions/0025-admission-by-forecast.md
SMALLEST_RISK = 1e-12  # smaller risks, and risks closer to 1, make no difference
SOON = HORIZONS.index(64) + 1  # ``expects_room`` reads the horizons before this index


class Verdict(Enum):
    """The decision about a candidate and the requests behind it in the queue."""

    ADMIT = auto()
    WAIT = auto()  # the candidate must wait, and so must every request behind it
    SKIP = auto()  # the candidate must wait, but younger unprotected requests may start before it
    NEVER_FITS = auto()  # the candidate needs more pages than the whole pool has


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The verdict about a waiting request, and the prefix match on which it is based."""

    verdict: Verdict
    match: MatchResult


class Admission:
    """Admits a request if the pools will suffice for it and all running requests, with a probability of ``1 - risk``.

    The demand at each horizon is the expected value from ``Forecast`` plus a number of standard deviations that
    depends on the risk. A protected request reserves its maximum length instead of its expected length.
    """

    def __init__(
        self,
        pool: Pool,
        ratio: NewTokenRatio,
        lengths: OutputLengths,
        more_pools: Sequence[KvPool] = (),
        *,
        risk: float = DEFAULT_RISK,
    ) -> None:
        """pool: the pool with the prefix cache. risk: accepted probability that a request must be retracted."""
        self._tree_pool = pool
        self._pools: tuple[KvPool, ...] = (pool, *more_pools)
        self._ratio = ratio
        self._forecast = Forecast(self._pools, lengths)
        self._deviations = NormalDist().inv_cdf(min(max(1 - risk, SMALLEST_RISK), 1 - SMALLEST_RISK))
        self._promised: dict[str, list[int]] = {}  # pages reserved for running protected requests, per pool
        self._protected_waits = False

    def start_step(self, _running: Iterable[Request]) -> None:
        """See ``AdmissionRule``. Ignores the argument: ``charge`` and ``left`` have recorded the running requests."""
        self._protected_waits = False
        self._forecast.refresh()

    def charge(self, req: Request) -> None:
        """Reserve the memory that ``req``, which now runs, is expected to need."""
        self._forecast.started(req)
        if req.protected:
            self._promised[req.rid] = [promised_pages(pool, req) for pool in self._pools]

    def left(self, req: Request) -> None:
        """Release the reservation of ``req``, which no longer runs."""
        self._forecast.left(req)
        self._promised.pop(req.rid, None)

    def advance(self) -> None:
        """Record that a step with decode rows was planned."""
        self._forecast.advance()

    def expects_room(self) -> bool:
        """True if the running requests are expected to fit into every pool at one of the next horizons."""
        self._forecast.refresh()
        changes = [self._forecast.change(number) for number in range(len(self._pools))]
        usable = [pool.usable_pages * pool.page_size for pool in self._pools]
        return any(
            all(change[place] <= tokens for change, tokens in zip(changes, usable, strict=True))
            for place in range(1, SOON)
        )

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """Decide whether ``req`` may start, as if the requests in ``without`` had been retracted.

        Call this method for waiting requests in the order of admission.
        """
        known = len(req.known)
        if any(pool.pages_for(known) > pool.capacity for pool in self._pools):
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._tree_pool.tree_cache.match_prefix(req)
        alone = len(self._forecast) <= len(without)
        if req.protected and not alone and self._breaks_promise(req):
            return AdmissionResult(Verdict.SKIP, match)
        locked = [match.num_locked_in(number) for number in range(len(self._pools))]
        if alone or req.protected:
            fits = self._fits_now(req, locked, without)
        else:
            fits = self._fits(req, locked, without)
        return AdmissionResult(Verdict.ADMIT if fits else Verdict.WAIT, match)

    def _fits_now(self, req: Request, locked: Sequence[int], without: Sequence[Request]) -> bool:
        """True if every pool has room for all known tokens of ``req`` and the running requests."""
        for number, (pool, pages) in enumerate(zip(self._pools, locked, strict=True)):
            usable = pool.usable_pages + sum(map(pool.freed_by, without))
            if self._forecast.missing(number, without) + pool.pages_for(len(req.known)) - pages > usable:
                return False
        return True

    def _fits(self, req: Request, locked: Sequence[int], without: Sequence[Request]) -> bool:
        """True if every pool is expected to suffice at every horizon, with the accepted risk."""
        reserved, fits = 0.0, True
        for number, term in enumerate(self._forecast.candidate(req, locked)):
            pool = self._pools[number]
            usable = (pool.usable_pages + sum(map(pool.freed_by, without))) * pool.page_size
            change, variance = self._forecast.change(number, without), self._forecast.variance(number, without)
            for place, expected in enumerate(change):
                spread = self._deviations * sqrt(max(variance[place] + term.variance[place], 0.0))
                reserved = max(reserved, expected + spread)
                fits = fits and expected + spread + term.change[place] <= usable
        self._ratio.report(reserved, self._forecast.rest)
        return fits

    def _breaks_promise(self, req: Request) -> bool:
        """Return True if the protected request ``req`` must wait.

        This is so if the running protected requests leave too little memory for ``req``, or for a protected request
        before it in the queue.
        """
        self._protected_waits = self._protected_waits or any(
            sum(pages[number] for pages in self._promised.values()) + promised_pages(pool, req) > pool.capacity
            for number, pool in enumerate(self._pools)
        )
        return self._protected_waits
