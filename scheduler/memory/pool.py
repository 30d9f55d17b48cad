"""One pool of KV pages: allocator, prefix cache, and the private pages of running requests.

There is one pool per kind of KV, and this one is for the layers with full attention. Demand, allocation and accounting
are per pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ebbtide.messages import FULL_POOL
from ebbtide.paging import pages_for

from .accounting import OwnershipError, PoolAccounting, Sweep, compare_with_ledger, mismatches, rebuild
from .allocator import PageAllocator
from .cached_request import CachedRequest
from .kv_pool import total_demand
from .ledger import PageOwner
from .prefix_cache import BasePrefixCache


class Pool:
    """The pages of one kind of K/V, with the prefix cache."""

    name = FULL_POOL
    max_pages = math.inf

    def __init__(self, allocator: PageAllocator, tree_cache: BasePrefixCache) -> None:
        self.token_to_kv_pool_allocator = allocator
        self.page_size = allocator.page_size  # tokens
        self.ledger = allocator.ledger
        self.tree_cache = tree_cache
        self.uncached = 0  # number of private pages of running requests, updated with every change
        self.quarantined: set[int] = set()
        self.evicted_pages = 0
        self._sweep = Sweep(allocator)

    @property
    def capacity(self) -> int:
        """See ``KvPool``."""
        return self.token_to_kv_pool_allocator.num_pages - len(self.quarantined)

    @property
    def available_pages(self) -> int:
        """See ``KvPool``."""
        return self.token_to_kv_pool_allocator.available_pages

    @property
    def usable_pages(self) -> int:
        """See ``KvPool``."""
        cache = self.tree_cache
        return self.token_to_kv_pool_allocator.available_pages + cache.evictable_pages + cache.evictable_session_pages

    def pages_for(self, num_tokens: int) -> int:
        """See ``KvPool``."""
        return -(-num_tokens // self.page_size)

    def missing_pages(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        return max(-(-num_tokens // self.page_size) - len(req.pages), 0)

    def pages_to_restore(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        return self.missing_pages(req, num_tokens)

    def num_pages(self, req: CachedRequest) -> int:
        """See ``KvPool``."""
        return len(req.pages)

    def freed_by(self, req: CachedRequest) -> int:
        """See ``KvPool``. Pages that other requests share do not count."""
        return req.num_private + self.tree_cache.exclusively_locked_pages(req)

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """See ``KvPool``. A decode row needs pages for all tokens that it may sample."""
        size = self.page_size
        short = [req for req in running if req.computed + req.max_samples > len(req.pages) * size]
        needs = [
            (req, self.missing_pages(req, req.computed + (req.num_samples if req.is_decoding else 1))) for req in short
        ]
        return total_demand(needs, len(running))

    def accounting(self) -> PoolAccounting:
        """See ``AuditedPool``."""
        return PoolAccounting(
            available=self.token_to_kv_pool_allocator.available_pages,
            evictable=self.tree_cache.evictable_pages,
            protected=self.tree_cache.protected_pages,
            session_held=self.tree_cache.session_held_pages,
            uncached=self.uncached,
            total=self.capacity,
            quarantined=len(self.quarantined),
        )

    def owners(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedPool``."""
        yield from self.tree_cache.owners()
        for req in running:
            yield req, req.pages[req.num_shared :]

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """See ``AuditedPool``."""
        return sum([len(req.pages) - req.num_shared for req in running])

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        return compare_with_ledger(self.token_to_kv_pool_allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        errors = self._sweep.check_free_list()
        for req in self._sweep.next_share(running):
            errors += mismatches(self.ledger, req.pages[req.num_shared :], req)
        for owner, pages in self.tree_cache.next_owners(self._sweep.share):
            errors += mismatches(self.ledger, pages, owner)
        return errors

    def repair(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedPool``. First rebuilds the locks of the prefix cache, which can remove pages from it."""
        self.tree_cache.rebuild_locks(running)
        rebuild(self.token_to_kv_pool_allocator, self.owners(running), self.quarantined)
        self.uncached = self.recount(running)

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """See ``KvPool``."""
        shortfall = num_pages - self.token_to_kv_pool_allocator.available_pages
        if shortfall > 0:
            self.evicted_pages += self.tree_cache.evict(shortfall)
        return self.token_to_kv_pool_allocator.available_pages >= num_pages

    def allocate(self, req: CachedRequest, num_pages: int) -> None:
        """Allocate ``num_pages`` additional private pages to ``req``. At least that many pages must be free."""
        req.pages += self.token_to_kv_pool_allocator.take(num_pages, req)
        self.uncached += num_pages

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        """See ``KvPool``."""
        missing = pages_for(num_tokens, self.page_size) - len(req.pages)
        if missing > 0:
            self.evict_from_tree_cache(missing)
            self.allocate(req, min(missing, self.token_to_kv_pool_allocator.available_pages))
        return len(req.pages) * self.page_size

    def publish(self, req: CachedRequest, num_tokens: int) -> None:
        """Add the full pages of the first ``num_tokens`` tokens to the prefix cache.

        The steps that computed these tokens must be settled.
        """
        num_pages = num_tokens // self.page_size
        if num_pages > req.num_shared:
            before = req.num_private
            self.tree_cache.publish(req, num_pages)
            self.uncached -= before - req.num_private

    def cache_finished_req(self, req: CachedRequest) -> None:
        """Add the full computed pages of ``req``, which finished normally, to the prefix cache."""
        before = req.num_private
        self.tree_cache.cache_finished_req(req, min(req.num_confirmed, len(req.known)) // self.page_size)
        self.uncached -= before - req.num_private

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        """See ``KvPool``. Frees all private pages and unlocks the shared pages, which stay in the cache."""
        if is_insert:
            self.cache_finished_req(req)
        private = req.pages[req.num_shared :]
        self.tree_cache.release(req)
        self.token_to_kv_pool_allocator.give(private, req)
        self.uncached -= len(private)
        req.pages = []
        req.num_shared = 0
