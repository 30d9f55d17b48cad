"""Admission: decides if a waiting request may start now, and reserves memory for running and protected requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ..memory.kv_pool import KvPool, promised_pages
from ..memory.pool import Pool
from ..memory.prefix_cache import MatchResult
from ..request import Request
from .new_token_ratio import NewTokenRatio, OutputLengths

MIN_REMAINDER = 64  # minimum of the expected remaining output, in tokens; max_tokens may limit it further


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


class _Reservations:
    """The memory of one pool that running requests are expected to need."""

    def __init__(self, pool: KvPool) -> None:
        self.pool = pool
        self._page_size = pool.page_size
        self.clear()

    def clear(self) -> None:
        """Remove all reservations."""
        self._reserved = 0.0  # number of tokens for which running requests are expected to need more memory
        self._missing_pages = 0  # pages that the running requests lack for their known tokens
        self._protected_need = 0  # pages reserved for running protected requests

    def charge(self, req: Request, growth: float) -> None:
        """Reserve memory for a running request that is expected to grow by ``growth`` tokens."""
        missing = self.pool.missing_pages(req, len(req.known))
        growth = min(growth, max(self.pool.max_pages - self.pool.num_pages(req) - missing, 0) * self._page_size)
        if missing:
            self._missing_pages += missing
            growth += missing * self._page_size
        if req.protected:
            need = promised_pages(self.pool, req)
            self._protected_need += need
            self._reserved += max(need - self.pool.num_pages(req), 0) * self._page_size
        else:
            self._reserved += growth

    def exceeds_promise(self, req: Request) -> bool:
        """True if the pool is too small for ``req`` and the running protected requests at their maximum lengths."""
        return self._protected_need + promised_pages(self.pool, req) > self.pool.capacity

    def fits(self, num_tokens: int, num_locked: int, usable: int, growth: float) -> bool:
        """Return True if ``usable`` pages are enough for all reservations and a candidate with ``num_tokens`` tokens.

        num_locked: number of pages of the candidate's cached prefix that are already locked.
        growth: number of tokens by which the candidate is expected to grow.
        """
        size = self._page_size
        needed = min(self.pool.pages_for(num_tokens) * size + growth, self.pool.max_pages * size)
        return self._reserved + needed - num_locked * size <= usable * size

    def fits_now(self, num_tokens: int, num_locked: int, usable: int) -> bool:
        """Like ``fits``, but reserve memory only for the known tokens of running requests."""
        return self._missing_pages + self.pool.pages_for(num_tokens) - num_locked <= usable


class Admission:
    """Decides in each step which waiting requests may start.

    Every evaluation reads the current number of usable pages of each pool.
    """

    def __init__(
        self, pool: Pool, ratio: NewTokenRatio, lengths: OutputLengths, more_pools: Sequence[KvPool] = ()
    ) -> None:
        """pool: the pool with the prefix cache."""
        self._tree_pool = pool
        self._pools = [_Reservations(each) for each in (pool, *more_pools)]
        self._ratio = ratio
        self._lengths = lengths
        self._protected_waits = False
        self._alone = True

    def start_step(self, running: Iterable[Request]) -> None:
        """Reserve the memory that the requests in ``running`` are expected to need."""
        for reservations in self._pools:
            reservations.clear()
        self._protected_waits = False
        self._alone = True
        for req in running:
            self.charge(req)

    def charge(self, req: Request) -> None:
        """Reserve the memory that ``req``, which is now running, is expected to need."""
        self._alone = False
        growth = self._growth(req)
        for reservations in self._pools:
            reservations.charge(req, growth)

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """Decide whether ``req`` may start, as if the requests in ``without`` had been retracted.

        Call this method for waiting requests in the order of admission.
        """
        known = len(req.known)
        if any(each.pool.pages_for(known) > each.pool.capacity for each in self._pools):
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._tree_pool.tree_cache.match_prefix(req)
        if req.protected and not self._alone and self._breaks_promise(req):
            return AdmissionResult(Verdict.SKIP, match)
        growth = self._growth(req)
        for number, each in enumerate(self._pools):
            num_locked = match.num_locked_in(number)
            usable = each.pool.usable_pages + sum(map(each.pool.freed_by, without))
            if self._alone or req.protected:
                fits = each.fits_now(known, num_locked, usable)
            else:
                num_tokens = min(
                    known + req.max_samples, req.max_kv_tokens
                )  # the known tokens and those of the first decode item
                fits = each.fits(num_tokens, num_locked, usable, growth)
            if not fits:
                return AdmissionResult(Verdict.WAIT, match)
        return AdmissionResult(Verdict.ADMIT, match)

    def _breaks_promise(self, req: Request) -> bool:
        """Return True if the protected request ``req`` must wait.

        This is so if the running protected requests leave too little memory for ``req``, or for a protected request
        before it in the queue.
        """
        self._protected_waits = self._protected_waits or any(each.exceeds_promise(req) for each in self._pools)
        return self._protected_waits

    def _growth(self, req: Request) -> float:
        """Return the number of output tokens that ``req`` is still expected to produce, times the new-token ratio."""
        likely = max(self._lengths.expected - req.num_outputs, MIN_REMAINDER)
        return self._ratio.value * min(req.sampling.max_tokens - req.num_outputs, likely)
