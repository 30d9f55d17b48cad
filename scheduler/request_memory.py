"""Allocates and releases the memory of requests in all pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ebbtide.paging import least_tokens

from .lifecycle import ReleaseReason
from .memory.host_tier import HostTier
from .memory.kv_pool import FurtherPool, KvPool
from .memory.pool import Pool
from .memory.recurrent_state.state_pool import StatePool
from .request import Phase, Request


@dataclass(slots=True)
class Memory:
    """The pools of one scheduler, for allocations and releases that concern all of them.

    Attributes:
        pool: the first pool, which has the prefix cache.
        host_tier: the host tier; None if it is off.
        max_retractions: number of retractions after which a request is protected; -1 if requests are never protected.
        more_pools: the other pools in which a running request needs pages.
        states: the pool of recurrent states, which is also one of ``more_pools``; None without one.
        pools: all pools that running requests use, ``pool`` first.
    """

    pool: Pool
    host_tier: HostTier | None
    max_retractions: int
    more_pools: Sequence[FurtherPool] = ()
    states: StatePool | None = None
    pools: list[KvPool] = field(init=False)

    def __post_init__(self) -> None:
        self.pools = [self.pool, *self.more_pools]

    def never_fits(self, prompt_len: int, max_tokens: int) -> str:
        """Return the reason why a request of this size can never run; "" if it fits into every pool."""
        needed = least_tokens(prompt_len, max_tokens)
        for pool in self.pools:
            if pool.pages_for(needed) > pool.capacity:
                name = "the KV pool" if pool is self.pool else f"KV pool {pool.name}"
                return f"The prompt has {prompt_len} tokens, but {name} holds only {pool.capacity * pool.page_size}."
        return ""

    def allocate_up_to(self, req: Request, num_tokens: int) -> int:
        """Allocate pages for the first ``num_tokens`` tokens in every pool. Evict cached pages if necessary.

        Returns the number of tokens, at most ``num_tokens``, that fit into the request's pages in every pool.
        """
        for pool in self.pools:
            num_tokens = min(num_tokens, pool.allocate_up_to(req, num_tokens))
        return num_tokens

    def allocate_for_restore(self, req: Request, num_tokens: int) -> bool:
        """Allocate pages for the K/V of the first ``num_tokens`` tokens, which will be restored from the host tier.

        Releases the pages that only tokens before the last of these read. Returns False and leaves the request
        unchanged if too few pages are usable.
        """
        if not all(pool.evict_from_tree_cache(pool.pages_to_restore(req, num_tokens)) for pool in self.pools):
            return False
        req.computed = req.num_confirmed = num_tokens
        for pool in self.more_pools:
            pool.settled(req)
        return self.allocate_up_to(req, num_tokens) == num_tokens

    def release_req(self, req: Request, why: ReleaseReason) -> bool:
        """Release the K/V that ``req`` holds. No other function frees a request's memory.

        Only a finish publishes the computed pages; only a retraction or a preemption resets the request. A finish or an
        abort also drops the copy that a waiting request has in the host tier. An abort with ``DISCARD`` removes the
        request's pages from the prefix cache, unless another request uses them.

        Returns:
            True if the K/V will be copied to the host tier.
        """
        comes_back = why in (ReleaseReason.RETRACT, ReleaseReason.PREEMPT)
        offloaded = False
        if self.host_tier is not None:
            if comes_back:
                offloaded = self.host_tier.offload_kv_cache(
                    req, req.num_shared - self.pool.tree_cache.exclusively_locked_pages(req)
                )
            else:
                self.host_tier.discard(req)
        if req.phase is Phase.RUNNING:
            node = req.node
            for pool in self.pools:
                pool.release_kv_cache(req, is_insert=why is ReleaseReason.FINISH)
            if why is ReleaseReason.DISCARD and node is not None:
                self.pool.tree_cache.discard(node)
        if comes_back:
            req.history.high_water = max(req.history.high_water, req.computed)
            req.reset_for_retract(max_retractions=self.max_retractions)
        return offloaded
