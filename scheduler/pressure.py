"""Does the next step fit, and what gives way when it does not. The one place that frees a request's memory.

Order of sacrifice: unused cached pages, then running requests (they come back), then the last request (it is given up
with an answer). Knows pages and requests; knows nothing of plans, sockets or text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from .batching.policies import Candidate, VictimPolicy, shortest_output_first
from .memory.host_tier import HostTier
from .memory.pool import Pool
from .request import Phase, Request
from .state import State


class Why(Enum):
    """Why a request's memory is released."""

    FINISH = auto()
    ABORT = auto()
    RETRACT = auto()
    PREEMPT = auto()


@dataclass(frozen=True, slots=True)
class Victim:
    """A request that went back to the queue, as it was when it left."""

    req: Request
    freed_pages: int
    lost_tokens: int
    offloaded: bool


@dataclass(slots=True)
class Retraction:
    """One pressure event. ``aborted`` is the last request, when not even it fits alone; available is in tokens."""

    cause: str
    victims: list[Victim] = field(default_factory=list)
    aborted: Request | None = None
    old_available_tokens: int = 0
    available_tokens: int = 0
    old_ratio: float = 0.0
    new_ratio: float = 0.0


class Pressure:
    """Keeps the next step within the pool."""

    def __init__(self, state: State, pick: VictimPolicy, headroom: int = 1) -> None:
        self._state = state
        self._pool: Pool = state.pool
        self._tier: HostTier | None = state.host_tier
        self._pick = pick
        self._headroom = headroom

    def new_tokens_required_next_decode(self, running: Sequence[Request]) -> int:
        """What the next step of ``running`` takes from the free list, in tokens of whole pages.

        Decode rows at a page end take a page, and so does a protected request in mid-prefill, which others must make
        room for. When nothing decodes, the smallest chunk counts: half-prefilled prompts can fill a pool too.
        """
        at_end = [req for req in running if req.at_page_end]
        pages = sum(req.is_decoding or req.protected for req in at_end)
        if pages == 0 and at_end and len(at_end) == len(running):
            pages = 1
        return pages * self._pool.page_size

    def check_decode_mem(self, running: Sequence[Request], *, headroom_pages: int = 0) -> bool:
        """Whether the next step of ``running`` can go ahead; evicts the shortfall from the prefix cache first."""
        return self._shortfall(running, headroom_pages) == 0

    def retract_decode(self, running: list[Request]) -> Retraction:
        """Shrink ``running`` in place until its next step fits.

        Ends because each turn takes one request out or stops. At most one request is given up, and only the last; the
        caller ends it, which releases it.
        """
        event = self.begin("memory")
        while shortfall := self._shortfall(running, self._headroom * len(running) if len(running) > 1 else 0):
            if len(running) == 1:
                event.aborted = running.pop()
                break
            self.send_back(self._victim(running, shortfall), event, Why.RETRACT)
        self._state.ratio.raise_after_retract(running)
        self.end(event)
        return event

    def begin(self, cause: str) -> Retraction:
        """A new event, with the figures from before."""
        available = self._pool.token_to_kv_pool_allocator.available_size()
        return Retraction(cause, old_available_tokens=available, old_ratio=self._state.ratio.value)

    def end(self, event: Retraction) -> None:
        """The figures from after."""
        event.available_tokens = self._pool.token_to_kv_pool_allocator.available_size()
        event.new_ratio = self._state.ratio.value

    def send_back(self, candidate: Candidate, event: Retraction, why: Why) -> None:
        """Take one request out of the running ones and book it as the event's next victim."""
        req = candidate.req
        self._state.running.remove(req)
        offloaded = self.release_req(req, why)
        event.victims.append(Victim(req, candidate.frees, candidate.cost, offloaded))

    def release_req(self, req: Request, why: Why) -> bool:
        """Give back everything ``req`` holds; its own row too. Only a finish publishes, only a retraction resets.

        Returns whether its K/V went to the host tier.
        """
        goes_back = why in (Why.RETRACT, Why.PREEMPT)
        offloaded = goes_back and self._offload_kv_cache(req)
        self._pool.release_kv_cache(req, is_insert=why is Why.FINISH)
        if req.row is not None:
            self._state.free_rows.append(req.row)
            req.row = None
        if goes_back:
            req.history.high_water = max(req.history.high_water, req.computed)
            req.move_to(Phase.WAITING)
            req.reset_for_retract(max_retractions=self._state.limits.max_retractions)
        return offloaded

    def candidate(self, req: Request) -> Candidate:
        """What it would bring and cost to send ``req`` back. Pages that stay shared count for neither."""
        own = self._pool.tree_cache.exclusively_locked_pages(req)
        kept = (req.num_shared - own) * req.page_size
        return Candidate(req, req.num_private + own, max(req.computed - kept, 0))

    def lower_ranked(self, running: Iterable[Request], priority: int) -> list[Candidate]:
        """Who may be preempted for a request of ``priority``: strictly lower and unprotected, lowest first."""
        lower = [req for req in running if req.priority < priority and not req.protected]
        lower.sort(key=lambda req: (req.priority, shortest_output_first(req)))
        return [self.candidate(req) for req in lower]

    def _shortfall(self, running: Sequence[Request], headroom_pages: int) -> int:
        """Pages that the next step lacks after eviction."""
        pages = self.new_tokens_required_next_decode(running) // self._pool.page_size + headroom_pages
        self._pool.evict_from_tree_cache(pages)
        return max(pages - self._pool.token_to_kv_pool_allocator.available_pages, 0)

    def _offload_kv_cache(self, req: Request) -> bool:
        """Keep what would be lost; pages that others lock will still be in the tree."""
        if self._tier is None:
            return False
        return self._tier.offload_kv_cache(req, req.num_shared - self._pool.tree_cache.exclusively_locked_pages(req))

    def _victim(self, running: Sequence[Request], shortfall: int) -> Candidate:
        """The policy's next victim; one whose leaving frees nothing is skipped while another can be had.

        When all are protected, which only a shrinking pool can bring about, the youngest leaves.
        """
        unprotected = [self.candidate(req) for req in running if not req.protected]
        candidates = [candidate for candidate in unprotected if candidate.frees] or unprotected
        if candidates:
            return self._pick(candidates, shortfall)
        return self.candidate(max(running, key=lambda req: req.arrival))
