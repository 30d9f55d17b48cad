"""Admission rules that never have to retract: TensorRT-LLM's default, and an oracle that knows every output length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebbtide.scheduler.batching.admission import AdmissionResult, Verdict
from ebbtide.scheduler.batching.scheduling_policies import ReservesPerStep
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.memory.prefix_cache import MatchResult
from ebbtide.scheduler.request import Request

from .trace import TraceRequest


class WholeOutputAdmission(ReservesPerStep):
    """TensorRT-LLM's GUARANTEED_NO_EVICT: admits a request if it and all running requests fit at their maximum lengths.

    A request whose max_tokens exceeds the pool is counted with the size of the pool, so it runs alone.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._reserved = 0  # number of pages that running requests still need for their maximum lengths
        self._alone = True

    def start_step(self, running: Iterable[Request]) -> None:
        """See ``AdmissionRule``."""
        self._reserved = 0
        self._alone = True
        for req in running:
            self.charge(req)

    def charge(self, req: Request) -> None:
        """See ``AdmissionRule``."""
        self._alone = False
        self._reserved += max(self._at_most(req) - len(req.pages), 0)

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """See ``AdmissionRule``."""
        if self._pool.pages_for(len(req.known)) > self._pool.capacity:
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._pool.tree_cache.match_prefix(req)
        usable = self._pool.usable_pages + sum(map(self._pool.freed_by, without))
        need = self._pool.pages_for(len(req.known)) if self._alone else self._reserved + self._at_most(req)
        return AdmissionResult(Verdict.ADMIT if need - match.num_locked <= usable else Verdict.WAIT, match)

    def _at_most(self, req: Request) -> int:
        return min(self._pool.pages_for(req.max_kv_tokens), self._pool.capacity)


class OracleAdmission(ReservesPerStep):
    """Knows every output length. Admits a request as soon as the pool suffices at every future step, in order.

    It ignores prefill time, so in rare cases a request is retracted. No real rule knows the output lengths: the oracle
    is the bound for rules that keep the order of arrival and avoid retractions.
    """

    def __init__(self, pool: Pool, requests: Sequence[TraceRequest]) -> None:
        self._pool = pool
        self._requests = requests
        self._running: list[tuple[int, int]] = []  # (tokens until the end, private tokens) of each running request
        self._held = 0  # private pages of running requests

    def start_step(self, running: Iterable[Request]) -> None:
        """See ``AdmissionRule``."""
        self._running = []
        self._held = 0
        for req in running:
            self.charge(req)

    def charge(self, req: Request) -> None:
        """See ``AdmissionRule``."""
        size = self._pool.page_size
        freed = self._pool.freed_by(req)
        shared = len(req.pages) - freed
        self._held += freed
        self._running.append((self._remaining(req), max(len(req.known) - shared * size, 0)))

    def evaluate(self, req: Request, *, without: Sequence[Request] = ()) -> AdmissionResult:
        """See ``AdmissionRule``."""
        known = self._pool.pages_for(len(req.known))
        if known > self._pool.capacity:
            return AdmissionResult(Verdict.NEVER_FITS, MatchResult())
        match = self._pool.tree_cache.match_prefix(req)
        usable = self._pool.usable_pages + sum(map(self._pool.freed_by, without))
        if not self._running:
            fits = known - match.num_locked <= usable
        else:
            fits = self._peak(req, match) <= self._total(usable)
        return AdmissionResult(Verdict.ADMIT if fits else Verdict.WAIT, match)

    def _peak(self, req: Request, match: MatchResult) -> int:
        """Return the peak number of private pages of the running requests and ``req``.

        The peak occurs when one of these requests ends.
        """
        size = self._pool.page_size
        ends = [*self._running, (self._remaining(req), len(req.known) - match.num_locked * size)]
        return max(
            sum(-(-(tokens + end - 1) // size) for remaining, tokens in ends if remaining >= end) for end, _ in ends
        )

    def _total(self, usable: int) -> int:
        """Return the number of pages that are private to running requests or usable."""
        return usable + self._held

    def _remaining(self, req: Request) -> int:
        return self._requests[req.sampling.seed].num_outputs - req.num_outputs
