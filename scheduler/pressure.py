"""Does the next step fit, and what gives way when it does not. The one place that frees a request's memory.

Order of sacrifice: unused cached pages, then running requests (they come back), then the last request (it is given up
with an answer). Knows pages and requests; knows nothing of plans, sockets or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from .memory.pool import Pool
from .new_token_ratio import NewTokenRatio
from .policy import RETRACT_ORDERS
from .request import Phase, Request


class Why(Enum):
    """Why a request's memory is released."""

    FINISH = auto()
    ABORT = auto()
    RETRACT = auto()
    PREEMPT = auto()


@dataclass(slots=True)
class Retraction:
    """One pressure event. ``aborted`` is the last request, when not even it fits alone."""

    victims: list[Request] = field(default_factory=list)
    freed_pages: list[int] = field(default_factory=list)
    aborted: Request | None = None
    available_before: int = 0
    available_after: int = 0
    ratio_before: float = 0.0
    ratio_after: float = 0.0


class Pressure:
    """Keeps the next step within the pool."""

    def __init__(
        self,
        pool: Pool,
        ratio: NewTokenRatio,
        free_rows: list[int],
        *,
        policy: str = "length",
        max_retractions: int = 3,
    ) -> None:
        self._pool = pool
        self._ratio = ratio
        self._free_rows = free_rows
        self._order = RETRACT_ORDERS[policy]
        self._max_retractions = max_retractions

    def new_tokens_required_next_decode(self, running: Sequence[Request]) -> int:
        """What the next step of ``running`` takes from the free list, in tokens of whole pages.

        Decode rows at a page end take a page, and so does a protected request in mid-prefill, which others must make
        room for. When nothing decodes, the smallest chunk counts: half-prefilled prompts can fill a pool too.
        """
        at_end = [req for req in running if req.at_page_end]
        pages = sum(req.decodes or req.protected for req in at_end)
        if pages == 0 and at_end and len(at_end) == len(running):
            pages = 1
        return pages * self._pool.page_size

    def check_decode_mem(self, running: Sequence[Request], *, headroom_pages: int = 0) -> bool:
        """Whether the next step of ``running`` can go ahead; evicts the shortfall from the prefix cache first."""
        size = self._pool.page_size
        num_tokens = self.new_tokens_required_next_decode(running) + headroom_pages * size
        self._pool.evict_from_tree_cache(num_tokens // size)
        return self._pool.allocator.available_size() >= num_tokens

    def retract_decode(self, running: list[Request]) -> Retraction:
        """Shrink ``running`` in place until its next step fits.

        Ends because each turn takes one request out or stops. At most one request is given up, and only the last; the
        caller ends it, which releases it.
        """
        event = Retraction(available_before=self._pool.allocator.available_size(), ratio_before=self._ratio.value)
        while not self.check_decode_mem(running, headroom_pages=len(running) if len(running) > 1 else 0):
            if len(running) == 1:
                event.aborted = running.pop()
                break
            victim = self._pick(running)
            before = self._pool.usable_pages
            running.remove(victim)
            self.release_req(victim, Why.RETRACT)
            event.victims.append(victim)
            event.freed_pages.append(self._pool.usable_pages - before)
        self._ratio.raise_after_retract(running)
        event.available_after = self._pool.allocator.available_size()
        event.ratio_after = self._ratio.value
        return event

    def release_req(self, req: Request, why: Why) -> None:
        """Give back everything ``req`` holds; its own row too. Only a finish publishes, only a retraction resets."""
        self._pool.release_kv_cache(req, is_insert=why is Why.FINISH)
        if req.row is not None:
            self._free_rows.append(req.row)
            req.row = None
        if why in (Why.RETRACT, Why.PREEMPT):
            req.history.high_water = max(req.history.high_water, req.computed)
            req.move_to(Phase.WAITING)
            req.reset_for_retract(max_retractions=self._max_retractions)

    def _pick(self, running: list[Request]) -> Request:
        """The next victim in the policy's order; one whose leaving frees nothing is skipped while another can be had.

        When all are protected, which only a shrinking pool can bring about, the youngest leaves.
        """
        unprotected = [req for req in running if not req.protected]
        candidates = [req for req in unprotected if self._frees(req)] or unprotected
        if candidates:
            return min(candidates, key=self._order)
        return max(running, key=lambda req: req.arrival)

    def _frees(self, req: Request) -> bool:
        return req.num_private > 0 or self._pool.cache.lock_only(req) > 0
