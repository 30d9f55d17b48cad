"""The interface of a pool that running requests take pages from, for admission, allocation and retraction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ebbtide.paging import pages_for

from .accounting import AuditedPool
from .cached_request import CachedRequest


class KvPool(AuditedPool, Protocol):
    """A pool of KV pages. All numbers are in pages, each of ``page_size`` tokens of one request.

    Only the first pool has a prefix cache. A pool without one keeps its page lists by request id.
    """

    @property
    def capacity(self) -> int:
        """Pages in service: what one request alone could use."""

    @property
    def available_pages(self) -> int:
        """Free pages."""

    @property
    def usable_pages(self) -> int:
        """Free pages plus pages that eviction can free. Admission is based on this number."""

    def never_fits(self, prompt_len: int, max_tokens: int) -> str:
        """The reason why a request of that size can never run, or "". Such a request must not block the queue."""

    def num_pages(self, req: CachedRequest) -> int:
        """Pages that ``req`` holds, shared ones included."""

    def freed_by(self, req: CachedRequest) -> int:
        """Pages that a retraction of ``req`` makes usable."""

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """Pages that the next step of ``running`` takes from the free list."""

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """Evict only the shortfall to ``num_pages`` free pages. Returns True if that many are free."""

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        """Allocate pages for the first ``num_tokens`` tokens of ``req``, evicting as needed.

        Returns the number of tokens that the request's pages hold, which is smaller if the pool has too few pages.
        """

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        """Free the pages of ``req``. is_insert: cache its full computed pages first, if there is a cache."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that lacks ``num_pages`` pages for the next step."""

    pool: KvPool
    num_pages: int


def least_demand(pool: KvPool, req: CachedRequest) -> int:
    """Pages that ``req`` lacks for its next token alone."""
    return max(pages_for(req.computed + 1, pool.page_size) - pool.num_pages(req), 0)


def first_too_small(pools: Sequence[KvPool], req: CachedRequest) -> KvPool:
    """The first pool that cannot hold the request's known tokens; the first of all if each can."""
    known = len(req.known)
    return next((pool for pool in pools if pool.capacity * pool.page_size < known), pools[0])


def first_without_page(pools: Sequence[KvPool], req: CachedRequest) -> KvPool:
    """The first pool in which ``req`` has no page for its next token; the first of all if it has one in each."""
    return next((pool for pool in pools if pool.num_pages(req) * pool.page_size <= req.computed), pools[0])
