"""Admits waiting requests, in order, as long as the token budget, the rows and the memory are sufficient."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ebbtide.plan import PlanItem

from ..gates import Gates
from ..lifecycle import Lifecycle
from ..memory.prefix_cache import MatchResult
from ..request import Request
from ..request_memory import Memory
from ..retraction import Retractor
from .admission import Verdict
from .plan_items import PlanItems
from .policies import AdmissionOrder
from .scheduling_policies import AdmissionRule
from .wait_estimate import WaitEstimate

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Round:
    """The decisions of one pass over the queue.

    They are applied after the pass, because the queue must not change during it.
    """

    items: list[PlanItem] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    without_page: list[Request] = field(default_factory=list)  # started, although no page is free for even one token
    never_fit: list[Request] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitter:
    """Admits requests and creates the first prefill chunk of each."""

    memory: Memory
    lifecycle: Lifecycle
    retractor: Retractor
    admission: AdmissionRule
    items: PlanItems
    gates: Gates
    order: AdmissionOrder
    waits: WaitEstimate

    def admit(self, budget: int, now: float) -> list[PlanItem]:
        """Start waiting requests. Return their first chunks, which have at most ``budget`` tokens in total."""
        if budget <= 0 or not self.lifecycle.waiting or not self.lifecycle.free_rows:
            return []
        this = _Round()
        self._admit(this, budget, now)
        self.lifecycle.leave_queue(this.started)
        self.waits.started(len(this.started), now)
        for req in this.never_fit:
            self.retractor.abort_kv_exhausted(req)
        if this.without_page:  # the cache reported more evictable pages than it could free
            log.error("Request %s was admitted without room for one token.", this.without_page[0].rid)
            self.retractor.retract_without_page(this.without_page, now)
        return this.items

    def _admit(self, this: _Round, budget: int, now: float) -> None:
        lifecycle = self.lifecycle
        self.admission.start_step(lifecycle.running)
        for req in self.order(lifecycle.waiting.candidates(), self._match_len):
            if budget <= 0 or not lifecycle.free_rows:
                break
            if not self.gates.ready(req):
                continue
            result = self.admission.evaluate(req)
            if result.verdict is Verdict.NEVER_FITS:
                this.never_fit.append(req)
            elif result.verdict is Verdict.WAIT:
                break
            elif result.verdict is Verdict.ADMIT:
                item = self._start(req, result.match, budget, now)
                this.started.append(req)
                if item is None:
                    this.without_page.append(req)
                    break
                this.items.append(item)
                budget -= len(item.tokens or ())

    def _start(self, req: Request, match: MatchResult, budget: int, now: float) -> PlanItem | None:
        """Give an admitted request its cached prefix, a row and its first chunk. Returns None if no page is free."""
        pool = self.memory.pool
        pool.tree_cache.attach(req, match)
        req.computed = req.num_confirmed = len(req.pages) * pool.page_size
        self.lifecycle.start(req, now)
        self._restore(req)
        item = self.items.prefill(req, budget)
        if item is not None:
            self.admission.charge(req)
        return item

    def _restore(self, req: Request) -> None:
        """Restore K/V from the host tier if it covers more tokens than the prefix cache and enough pages are usable."""
        tier = self.memory.host_tier
        if tier is None:
            return
        req.history.restored_tokens = 0
        num_cached = req.computed
        num_tokens = tier.restorable(req, len(req.pages))
        if num_tokens > num_cached and self.memory.allocate_for_restore(req, num_tokens):
            tier.restore(req)
            req.history.restored_tokens = num_tokens - num_cached
        tier.discard(req)

    def _match_len(self, req: Request) -> int:
        return len(self.memory.pool.tree_cache.match_prefix(req).pages)
