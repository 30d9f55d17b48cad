"""May a waiting request start now? Charges, reservations and the promise to protected requests (pressure.md §2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from ebbtide.paging import pages_for

from ..memory.pool import Pool
from ..memory.prefix_cache import MatchResult
from ..request import Request
from .new_token_ratio import NewTokenRatio, OutputLengths

MIN_REMAINDER = 64  # output tokens that a request is thought to have ahead, unless its max_tokens says fewer


class Verdict(Enum):
    """What to do with a candidate and with those behind it."""

    ADMIT = auto()
    WAIT = auto()  # and nobody behind it may start either
    PASS = auto()  # younger unprotected requests may start before it
    HOPELESS = auto()  # it has outgrown the whole pool


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and the prefix that it counted on."""

    verdict: Verdict
    match: MatchResult


class Admission:
    """Judges the candidates of one step after another. The pool's usable pages are read at each judgement."""

    def __init__(self, pool: Pool, ratio: NewTokenRatio, lengths: OutputLengths) -> None:
        self._pool = pool
        self._ratio = ratio
        self._lengths = lengths
        self._reserved = 0.0
        self._lacking_pages = 0
        self._protected_need = 0
        self._protected_waits = False
        self._alone = True

    def begin(self, running: Iterable[Request]) -> None:
        """Start a step: add up what the running requests are still going to take."""
        self._reserved = 0.0
        self._lacking_pages = self._protected_need = 0
        self._protected_waits = False
        self._alone = True
        for req in running:
            self.admitted(req)

    def admitted(self, req: Request) -> None:
        """``req`` runs: charge it to those that come after."""
        lacks = req.num_missing_pages
        self._alone = False
        self._lacking_pages += lacks
        if req.protected:
            need = self.need(req)
            self._protected_need += need
            self._reserved += max(need - len(req.pages), 0) * self._pool.page_size
        else:
            self._reserved += lacks * self._pool.page_size + self._ratio.value * self._remainder(req)

    def need(self, req: Request) -> int:
        """Pages that a protected request has been promised."""
        return min(pages_for(req.max_kv_tokens, self._pool.page_size), self._pool.capacity)

    def judge(self, req: Request, *, extra_pages: int = 0) -> Judgement:
        """Whether ``req``, the next in order, may start if ``extra_pages`` more were usable."""
        known_pages = pages_for(len(req.known), self._pool.page_size)
        if known_pages > self._pool.capacity:
            return Judgement(Verdict.HOPELESS, MatchResult())
        match = self._pool.tree_cache.match_prefix(req)
        usable = self._pool.usable_pages + extra_pages
        if self._alone:
            fits = known_pages - match.num_locked <= usable
            return Judgement(Verdict.ADMIT if fits else Verdict.WAIT, match)
        if req.protected:
            return Judgement(self._judge_protected(req, known_pages - match.num_locked, usable), match)
        start = pages_for(min(len(req.known) + 1, req.max_kv_tokens), self._pool.page_size) - match.num_locked
        charge = start * self._pool.page_size + self._ratio.value * self._remainder(req)
        fits = self._reserved + charge <= usable * self._pool.page_size
        return Judgement(Verdict.ADMIT if fits else Verdict.WAIT, match)

    def _judge_protected(self, req: Request, new_pages: int, usable: int) -> Verdict:
        if self._protected_waits or self._protected_need + self.need(req) > self._pool.capacity:
            self._protected_waits = True  # protected requests do not pass each other
            return Verdict.PASS
        fits = self._lacking_pages + new_pages <= usable
        return Verdict.ADMIT if fits else Verdict.WAIT

    def _remainder(self, req: Request) -> int:
        """Output tokens that ``req`` probably still makes."""
        likely = max(self._lengths.expected - req.num_outputs, MIN_REMAINDER)
        return min(req.sampling.max_tokens - req.num_outputs, likely)
