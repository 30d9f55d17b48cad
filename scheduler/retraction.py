"""Memory pressure: checks whether the next step fits, and retracts requests if it does not.

The calls, in order: ``check_decode_mem`` → ``retract_decode`` → ``release_req`` → ``requeue``. Unused
cached pages are evicted first, then running requests are retracted (they resume later). A request is aborted only if it
is the only one left running and its next step still does not fit. The module does not depend on plans, sockets or text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from http import HTTPStatus

from ebbtide.messages import AbortReq, PressureEvent, PressureVictim
from ebbtide.retract_policies import Candidate

from .batching.new_token_ratio import NewTokenRatio
from .batching.scheduling_policies import SchedulingPolicies
from .lifecycle import Lifecycle, ReleaseReason
from .memory.kv_pool import KvPool, Shortage, first_too_small, first_without_page
from .outbox import Outbox
from .request import Request
from .request_memory import Memory

log = logging.getLogger(__name__)


class RetractReason(Enum):
    """The reason for a retraction."""

    MEMORY = "memory"
    PRIORITY = "priority"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class FINISH_ABORT:
    """The finish reason of a request that is aborted because it does not fit into the KV pool even if it runs alone."""

    message: str
    status_code: int = HTTPStatus.INTERNAL_SERVER_ERROR.value
    reason: str = "kv_cache_exhausted"


@dataclass(frozen=True, slots=True)
class Victim:
    """A retracted request and the cost of its retraction."""

    req: Request
    freed_pages: int
    lost_tokens: int  # number of tokens to recompute if none of the freed pages stays cached
    offloaded: bool  # True if its K/V will be copied to the host tier


@dataclass(slots=True)
class Retraction:
    """One pressure event."""

    reason: RetractReason
    now: float
    pool: KvPool  # the pool that lacked pages; all sizes of the event refer to this pool
    old_available_tokens: int
    old_ratio: float
    victims: list[Victim] = field(default_factory=list)
    aborted: Request | None = (
        None  # the only remaining running request, if its next step does not fit and it is aborted
    )


class Retractor:
    """Retracts requests until the next step fits into every pool.

    Every retraction produces one event and one WARNING, and requeues the victims.
    """

    def __init__(
        self,
        memory: Memory,
        lifecycle: Lifecycle,
        ratio: NewTokenRatio,
        policies: SchedulingPolicies,
        outbox: Outbox,
        audit: Callable[[], None],
    ) -> None:
        """audit: checks every page, and raises InvariantViolation if an invariant does not hold."""
        self.num_steps = 0
        self._memory = memory
        self._lifecycle = lifecycle
        self._ratio = ratio
        self._policies = policies
        self._outbox = outbox
        self._audit = audit

    def new_tokens_required_next_decode(self, running: Sequence[Request], pool: KvPool | None = None) -> int:
        """Return the number of tokens, in whole pages, that the next step of ``running`` needs from ``pool``.

        pool: the pool; None for the first pool.
        """
        pool = pool or self._memory.pool
        return pool.demand(running) * pool.page_size

    def check_decode_mem(self, running: Sequence[Request], *, headroom_pages: int = 0) -> bool:
        """Return True if the next step of ``running`` fits. Evict pages from the prefix cache if necessary.

        headroom_pages: number of pages that must be free in each pool in addition to the demand.
        """
        return self._shortage(running, headroom_pages) is None

    def retract_decode(self, now: float) -> None:
        """Retract running requests until the next step of the others fits.

        The loop ends because each iteration either retracts one request or stops. A request is aborted only if it is
        the only one left running.
        """
        running = self._lifecycle.running
        shortage = self._shortage(running, self._headroom(running))
        with self._event(RetractReason.MEMORY, now, shortage.pool if shortage else self._memory.pool) as event:
            while shortage:
                if len(running) == 1:
                    self._audit()  # a leaked page must not look like exhaustion
                    event.aborted = running[0]
                    break
                self._retract(self._victim(running, shortage), event)
                shortage = self._shortage(running, self._headroom(running))
            self._ratio.raise_after_retract([] if event.aborted else running)
        if event.aborted is not None:
            self.abort_kv_exhausted(event.aborted)

    def retract(self, victims: Iterable[Request], reason: RetractReason, now: float) -> None:
        """Retract ``victims``, which are running, as one event, for a reason other than memory pressure."""
        with self._event(reason, now, self._memory.pool) as event:
            for req in victims:
                self._retract(req, event)

    def retract_without_page(self, victims: Sequence[Request], now: float) -> None:
        """Retract running requests that got no page for their next token, as one event."""
        with self._event(RetractReason.MEMORY, now, first_without_page(self._memory.pools, victims[0])) as event:
            for req in victims:
                self._retract(req, event)
            self._ratio.raise_after_retract(self._lifecycle.running)

    def abort_kv_exhausted(self, req: Request) -> None:
        """Abort a request that does not fit even when it runs alone."""
        pool = first_too_small(self._memory.pools, req)
        capacity = pool.capacity * pool.page_size
        message = (
            f"The KV cache is exhausted: the request has {len(req.known)} tokens (prompt {req.prompt_len}, output "
            f"{req.num_outputs}), but the whole pool holds only {capacity} tokens. Ask for fewer tokens or start the "
            f"server with a larger --max-total-tokens."
        )
        end = FINISH_ABORT(message)
        abort = AbortReq(req.rid, end.reason, end.status_code, end.reason, end.message, req.num_outputs)
        self._lifecycle.abort(req, abort, tell_front=True)

    def _retract(self, req: Request, event: Retraction) -> None:
        """Release one running request and requeue it. No other function retracts a request."""
        candidate = self._candidate(req, event.pool)
        preempted = event.reason is RetractReason.PRIORITY
        offloaded = self._memory.release_req(req, ReleaseReason.PREEMPT if preempted else ReleaseReason.RETRACT)
        self._lifecycle.requeue(req, front=self._policies.retracted_first, counted=True, now=event.now)
        event.victims.append(Victim(req, candidate.frees, candidate.cost, offloaded))

    @contextmanager
    def _event(self, reason: RetractReason, now: float, pool: KvPool) -> Iterator[Retraction]:
        """Yield a new event. Publish it at the end, even if an invariant violation interrupts the retraction."""
        event = Retraction(reason, now, pool, pool.available_pages * pool.page_size, self._ratio.value)
        try:
            yield event
        finally:
            if event.victims or event.aborted:
                self._publish(event)

    def _headroom(self, running: Sequence[Request]) -> int:
        return self._policies.headroom * len(running) if len(running) > 1 else 0

    def _shortage(self, running: Sequence[Request], headroom_pages: int) -> Shortage | None:
        """Return the first pool that lacks pages for the next step even after eviction; None if no pool lacks pages.

        A request that runs alone needs room for one token only.
        """
        for pool in self._memory.pools:
            pages = self.new_tokens_required_next_decode(running, pool) // pool.page_size + headroom_pages
            if not pool.evict_from_tree_cache(pages) and len(running) == 1:
                pages = pool.missing_pages(running[0], running[0].computed + 1) + headroom_pages
            if pages > pool.available_pages:
                return Shortage(pool, pages - pool.available_pages)
        return None

    def _candidate(self, req: Request, pool: KvPool) -> Candidate[Request]:
        """Return ``req`` as a candidate, with the pages of ``pool`` that its retraction frees and the tokens it costs.

        Pages that other requests share are not counted.
        """
        full = self._memory.pool
        freed = full.freed_by(req)
        kept = (len(req.pages) - freed) * req.page_size
        return Candidate(req, freed if pool is full else pool.freed_by(req), max(req.computed - kept, 0))

    def _victim(self, running: Sequence[Request], shortage: Shortage) -> Request:
        """Return the next request to retract, which the policy selects.

        Requests whose retraction would free no page are candidates only if all requests are of this kind.

        If all requests are protected, which happens only if a pool has shrunk, the youngest one is returned.
        """
        unprotected = [self._candidate(req, shortage.pool) for req in running if not req.protected]
        candidates = [candidate for candidate in unprotected if candidate.frees] or unprotected
        tier = self._memory.host_tier
        if tier is not None:
            candidates = [replace(candidate, cost=tier.price(candidate.cost)) for candidate in candidates]
        if candidates:
            return self._policies.select_victim(candidates, shortage.num_pages).req
        return max(running, key=lambda req: req.arrival)

    def _publish(self, event: Retraction) -> None:
        """Send one PressureEvent and log one WARNING."""
        size = event.pool.page_size
        published = PressureEvent(
            step=self.num_steps,
            cause=event.reason.value,
            victims=[_pressure_victim(victim, size) for victim in event.victims],
            available_before=event.old_available_tokens,
            available_after=event.pool.available_pages * size,
            ratio_before=event.old_ratio,
            ratio_after=self._ratio.value,
            num_running=len(self._lifecycle.running) - (event.aborted is not None),
            num_waiting=len(self._lifecycle.waiting),
            aborted=None if event.aborted is None else event.aborted.rid,
            pool=event.pool.name,
        )
        self._outbox.output.events.append(published)
        log.warning(
            "Retract requests (%s): %s; %d tokens gained, available %d -> %d tokens%s, new_token_ratio %.4f -> %.4f%s",
            published.cause,
            ", ".join(
                f"{victim.rid} ({victim.num_output_tokens} outputs, {victim.freed_tokens // size} pages)"
                for victim in published.victims
            )
            or "none",
            sum(victim.freed_tokens for victim in published.victims),
            published.available_before,
            published.available_after,
            f" of pool {event.pool.name}" if self._memory.more_pools else "",
            published.ratio_before,
            published.ratio_after,
            "" if published.aborted is None else f"; {published.aborted} does not fit even alone and is aborted",
        )


def _pressure_victim(victim: Victim, page_size: int) -> PressureVictim:
    return PressureVictim(
        rid=victim.req.rid,
        num_output_tokens=victim.req.num_outputs,
        prompt_tokens=victim.req.prompt_len,
        freed_tokens=victim.freed_pages * page_size,
        tokens_to_recompute=victim.lost_tokens,
        num_retractions=victim.req.history.retraction_count,
        offloaded=victim.offloaded,
    )
