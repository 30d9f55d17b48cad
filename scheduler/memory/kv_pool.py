"""The interface of a pool of KV pages, which admission, allocation and retraction use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .accounting import AuditedPool
from .cached_request import CachedRequest


class KvPool(AuditedPool, Protocol):
    """A pool of KV pages. All numbers are in pages, each of ``page_size`` tokens of one request.

    A request need not hold a page for each of its tokens: pages behind a sliding window are freed while it runs.
    """

    @property
    def capacity(self) -> int:
        """Number of pages in service, which a request could use if it ran alone."""

    @property
    def available_pages(self) -> int:
        """Number of free pages."""

    @property
    def usable_pages(self) -> int:
        """Number of free pages plus pages that eviction can free. Admission uses this number."""

    def pages_for(self, num_tokens: int) -> int:
        """The maximum number of pages that a request holds until its K/V has ``num_tokens`` tokens."""

    def num_pages(self, req: CachedRequest) -> int:
        """Number of pages that ``req`` holds, shared pages included."""

    def missing_pages(self, req: CachedRequest, num_tokens: int) -> int:
        """Number of pages that ``allocate_up_to`` would take from the free list, even if fewer are free."""

    def freed_by(self, req: CachedRequest) -> int:
        """Number of pages that become usable if ``req`` is retracted."""

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """Number of pages that the next step of ``running`` takes from the free list."""

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """Evict cached pages until ``num_pages`` pages are free, but no more than that.

        Returns True if that many are free.
        """

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        """Allocate pages for the first ``num_tokens`` tokens of ``req``, evicting as needed.

        Returns the number of tokens that fit into the request's pages, fewer than ``num_tokens`` if the pool is too
        small.
        """

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        """Free the pages of ``req``. is_insert: first add its full computed pages to the cache, if there is one."""


class FurtherPool(KvPool, Protocol):
    """A pool besides the first one. It has no prefix cache and keeps its page lists by request id."""

    def page_list(self, req: CachedRequest) -> tuple[int, Sequence[int]]:
        """Return the index of the first page that ``req`` holds, and the pages from that index on."""

    def take_unsent(self, req: CachedRequest) -> tuple[int, list[int]]:
        """Return the index of the first page of ``req`` that no plan contains yet, and the pages from that index on.

        These pages count as sent from now on.
        """


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that lacks ``num_pages`` pages for the next step."""

    pool: KvPool
    num_pages: int


def total_demand(needs: Iterable[tuple[CachedRequest, int]], num_running: int) -> int:
    """Return the demand of a pool. needs: number of pages that each request needs for its next token or decode item.

    The next page of a protected request in mid-prefill is part of the demand, so other requests may be retracted for
    it. If every running request is in mid-prefill and needs a page, the demand is one page, because partly prefilled
    prompts can fill a pool, too. Requests that need no page may be left out of ``needs``.
    """
    needs = list(needs)
    pages = sum(need for req, need in needs if req.is_decoding or req.protected)
    if pages == 0 and sum(need > 0 for _, need in needs) == num_running > 0:
        pages = 1
    return pages


def promised_pages(pool: KvPool, req: CachedRequest) -> int:
    """Number of pages reserved for a protected request: those of its maximum length, at most the whole pool."""
    return min(pool.pages_for(req.max_kv_tokens), pool.capacity)


def first_too_small(pools: Sequence[KvPool], req: CachedRequest) -> KvPool:
    """Return the first pool that cannot hold the request's known tokens; the first of all pools if each of them can."""
    known = len(req.known)
    return next((pool for pool in pools if pool.pages_for(known) > pool.capacity), pools[0])


def first_without_page(pools: Sequence[KvPool], req: CachedRequest) -> KvPool:
    """Return the first pool in which ``req`` has no page for its next token; the first of all pools if it has one in
    each.
    """
    return next((pool for pool in pools if pool.missing_pages(req, req.computed + 1)), pools[0])
