"""Admission: may a waiting request start now? Charges, reservations and the promise to protected requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from ebbtide.paging import pages_for

from ..memory.pool import Pool
from ..memory.prefix_cache import MatchResult
from ..request import Request
from .new_token_ratio import NewTokenRatio, OutputLengths

MIN_REMAINDER = 64  # least expected remaining output, in tokens, unless max_tokens leaves fewer


class Verdict(Enum):
    """What happens to a candidate and to the requests behind it."""

    ADMIT = auto()
    WAIT = auto()  # no request behind it may start either
    SKIP = auto()  # younger unprotected requests may start before it
    NEVER_FITS = auto()  # it has outgrown the whole pool


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """A verdict and the prefix match that it is based on."""

    verdict: Verdict
    match: MatchResult


class Admission:
    """Evaluates the candidates of one step after another. Reads the pool's usable pages at each evaluation."""

    def __init__(self, pool: Pool, ratio: NewTokenRatio, lengths: OutputLengths) -> None:
        self._pool = pool
        self._ratio = ratio
        self._lengths = lengths
        self._reserved = 0.0  # tokens that running requests are expected to take
        self._missing_pages = 0  # pages that known tokens of running requests still need
        self._protected_need = 0  # pages promised to running protected requests
        self._protected_waits = False
        self._alone = True

    def start_step(self, running: Iterable[Request]) -> None:
        """Add up what the running requests are expected to take."""
        self._reserved = 0.0
        self._missing_pages = self._protected_need = 0
        self._protected_waits = False
        self._alone = True
        for req in running:
            self.charge(req)

    def charge(self, req: Request) -> None:
        """``req`` runs: reserve what it is expected to take."""
        missing = req.num_missing_pages
        self._alone = False
        self._missing_pages += missing
        if req.protected:
            need = self.need(req)
            self._protected_need += need
            self._reserved += max(need - len(req.pages), 0) * self._pool.page_size
        else:
            self._reserved += missing * self._pool.page_size + self._ratio.value * self._remainder(req)

    def need(self, req: Request) -> int:
        """Pages that a protected request is promised."""
        return min(pages_for(req.max_kv_tokens, self._pool.page_size), self._pool.capacity)

    def evaluate(self, req: Request, *, extra_pages: int = 0) -> AdmissionResult:
        """Decide if ``req``, the next in order, may start, if ``extra_pages`` more pages were usable."""
        known_pages = pages_for(len(req.known), self._pool.page_size)
        if known_pages > self._pool.capacity:
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._pool.tree_cache.match_prefix(req)
        usable = self._pool.usable_pages + extra_pages
        if self._alone:
            fits = known_pages - match.num_locked <= usable
            return AdmissionResult(Verdict.ADMIT if fits else Verdict.WAIT, match)
        if req.protected:
            return AdmissionResult(self._evaluate_protected(req, known_pages - match.num_locked, usable), match)
        start = pages_for(min(len(req.known) + 1, req.max_kv_tokens), self._pool.page_size) - match.num_locked
        charge = start * self._pool.page_size + self._ratio.value * self._remainder(req)
        fits = self._reserved + charge <= usable * self._pool.page_size
        return AdmissionResult(Verdict.ADMIT if fits else Verdict.WAIT, match)

    def _evaluate_protected(self, req: Request, new_pages: int, usable: int) -> Verdict:
        if self._protected_waits or self._protected_need + self.need(req) > self._pool.capacity:
            self._protected_waits = True  # protected requests do not pass each other
            return Verdict.SKIP
        fits = self._missing_pages + new_pages <= usable
        return Verdict.ADMIT if fits else Verdict.WAIT

    def _remainder(self, req: Request) -> int:
        """Output tokens that ``req`` is expected to produce from now on."""
        likely = max(self._lengths.expected - req.num_outputs, MIN_REMAINDER)
        return min(req.sampling.max_tokens - req.num_outputs, likely)
