"""One pool of KV pages: the allocator, the prefix cache over it, and what requests hold privately.

Every kind of KV (full attention now) is one pool; demand, allocation and the books are per pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ebbtide.paging import pages_for

from ..request import Request
from .accounting import OwnershipError, PoolAccounting, Sweep, compare_with_ledger, mismatches, rebuild
from .allocator import PageAllocator
from .ledger import Ledger, PageOwner
from .prefix_cache import BasePrefixCache


class Pool:
    """Pages of one kind. ``uncached`` is what running requests hold outside the cache, counted as it changes."""

    name = "full"

    def __init__(self, allocator: PageAllocator, tree_cache: BasePrefixCache) -> None:
        self.token_to_kv_pool_allocator = allocator
        self.tree_cache = tree_cache
        self.uncached = 0
        self.quarantined: set[int] = set()  # pages out of service
        self.evicted_pages = 0
        self._sweep = Sweep(allocator)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.token_to_kv_pool_allocator.page_size

    @property
    def ledger(self) -> Ledger:
        """Who holds which page."""
        return self.token_to_kv_pool_allocator.ledger

    @property
    def capacity(self) -> int:
        """Pages that one request alone could use: all but those out of service."""
        return self.token_to_kv_pool_allocator.num_pages - len(self.quarantined)

    @property
    def usable_pages(self) -> int:
        """Free pages and those that eviction can free: what admission may count on."""
        cache = self.tree_cache
        return self.token_to_kv_pool_allocator.available_pages + cache.evictable_pages + cache.soft_pages

    def accounting(self) -> PoolAccounting:
        """The terms as each holder counts them."""
        return PoolAccounting(
            available=self.token_to_kv_pool_allocator.available_pages,
            evictable=self.tree_cache.evictable_pages,
            protected=self.tree_cache.protected_pages,
            session_held=self.tree_cache.session_held_pages,
            uncached=self.uncached,
            total=self.capacity,
            quarantined=len(self.quarantined),
        )

    def owners(self, running: Iterable[Request]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """Everyone but the free list who lists pages of this pool in a structure of its own, with those pages."""
        yield from self.tree_cache.owners()
        for req in running:
            yield req, req.pages[req.num_shared :]

    def recount(self, running: Sequence[Request]) -> int:
        """See ``AuditedPool``."""
        return sum([len(req.pages) - req.num_shared for req in running])

    def find_ownership_errors(self, running: Iterable[Request]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        return compare_with_ledger(self.token_to_kv_pool_allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[Request]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        errors = self._sweep.check_free_list()
        for req in self._sweep.next_share(running):
            errors += mismatches(self.ledger, req.pages[req.num_shared :], req)
        for owner, pages in self.tree_cache.next_owners(self._sweep.share):
            errors += mismatches(self.ledger, pages, owner)
        return errors

    def repair(self, running: Sequence[Request]) -> None:
        """See ``AuditedPool``; the cache counts its locks anew, too."""
        rebuild(self.token_to_kv_pool_allocator, self.owners(running), self.quarantined)
        self.uncached = self.recount(running)
        self.tree_cache.relock(running)

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """Evict the shortfall only, so that ``num_pages`` are free; whether they are."""
        short = num_pages - self.token_to_kv_pool_allocator.available_pages
        if short > 0:
            self.evicted_pages += self.tree_cache.evict(short)
        return self.token_to_kv_pool_allocator.available_pages >= num_pages

    def grow(self, req: Request, num_pages: int) -> None:
        """Give ``req`` that many more pages of its own. They must be free."""
        req.pages += self.token_to_kv_pool_allocator.take(num_pages, req)
        self.uncached += num_pages

    def cover(self, req: Request, num_tokens: int) -> int:
        """Extend ``req`` towards ``num_tokens`` tokens of K/V, evicting as needed; returns how many its pages hold.

        Takes what there is when it is not enough; the caller shortens the chunk.
        """
        lacking = pages_for(num_tokens, self.page_size) - len(req.pages)
        if lacking > 0:
            self.evict_from_tree_cache(lacking)
            self.grow(req, min(lacking, self.token_to_kv_pool_allocator.available_pages))
        return len(req.pages) * self.page_size

    def publish(self, req: Request, num_tokens: int) -> None:
        """Let others use the full pages among the first ``num_tokens`` tokens, which must be computed and collected."""
        num_pages = num_tokens // self.page_size
        if num_pages > req.num_shared:
            before = req.num_private
            self.tree_cache.publish(req, num_pages)
            self.uncached -= before - req.num_private

    def cache_finished_req(self, req: Request) -> None:
        """Let the cache keep the full pages that ``req``, which has ended well, has computed."""
        before = req.num_private
        self.tree_cache.cache_finished_req(req, min(req.num_confirmed, len(req.known)) // self.page_size)
        self.uncached -= before - req.num_private

    def release_kv_cache(self, req: Request, *, is_insert: bool) -> None:
        """Take everything back from ``req``: with ``is_insert`` its full computed pages go to the cache first.

        Pages that are in the cache already stay there, unlocked.
        """
        if is_insert:
            self.cache_finished_req(req)
        private = req.pages[req.num_shared :]
        self.tree_cache.release(req)
        self.token_to_kv_pool_allocator.give(private, req)
        self.uncached -= len(private)
        req.pages = []
        req.num_shared = 0
