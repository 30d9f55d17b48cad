"""The interface of a pool of KV pages, which admission, allocation and retraction use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .accounting import AuditedPool
from .cached_request import CachedRequest


class KvPool(AuditedPool, Protocol):
    """A pool of KV pages. Unless a name says tokens, numbers are in pages of ``page_size`` tokens.

    A request need not hold a page for each of its tokens: pages that have left a sliding window are freed while the
    request is running.
    """

    @property
    def capacity(self) -> int:
        """Number of pages that are not quarantined; a request that runs alone can use all of them."""

    @property
    def available_pages(self) -> int:
        """Number of free pages."""

    @property
    def usable_pages(self) -> int:
        """Number of free pages plus the number of pages that eviction can free. Used by admission."""

    @property
    def max_pages(self) -> float:
        """The maximum number of pages that one request holds, whatever its length; infinite if there is none."""

    def pages_for(self, num_tokens: int) -> int:
        """Return the maximum number of pages that a request holds until the K/V of ``num_tokens`` tokens exists."""

    def num_pages(self, req: CachedRequest) -> int:
        """Return the number of pages that ``req`` holds, including shared pages."""

    def missing_pages(self, req: CachedRequest, num_tokens: int) -> int:
        """Return the number of pages that ``allocate_up_to`` would need from the free list, even if fewer are free."""

    def pages_to_restore(self, req: CachedRequest, num_tokens: int) -> int:
        """Return the number of pages that ``req`` needs if the K/V of its first ``num_tokens`` tokens is restored."""

    def freed_by(self, req: CachedRequest) -> int:
        """Return the number of pages that become usable if ``req`` is retracted."""

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """Return the number of pages that the next step of the requests in ``running`` takes from the free list."""

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        """Evict cached pages until ``num_pages`` pages are free, and no further pages.

        Returns True if ``num_pages`` pages are free afterwards.
        """

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        """Allocate pages for the first ``num_tokens`` tokens of ``req``. Evict cached pages if necessary.

        Returns the number of tokens that fit into the request's pages. It is below ``num_tokens`` if too few pages are
        usable.
        """

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        """Free the pages of ``req``.

        is_insert: True to add its full computed pages to the prefix cache first, if the pool has one.
        """


class HeldPages(Protocol):
    """The pages of one request in an additional pool, which is any pool except the first."""

    pages: list[int]  # the pages from page index ``first`` on; the first ``num_shared`` of them belong to the tree

    @property
    def first(self) -> int:
        """The page index of the first page."""

    @property
    def sent(self) -> int:
        """The page index up to which plans contain the pages."""

    @property
    def num_shared(self) -> int:
        """Number of pages that belong to the prefix tree."""


class FurtherPool(KvPool, Protocol):
    """An additional pool: any pool except the first. It keeps its page lists by request id.

    A request can reuse computed tokens only if all pools have their K/V: a pool that implements ``TreePart`` as well
    keeps its pages in the prefix tree, and any other pool turns the prefix cache off.
    """

    @property
    def held(self) -> Mapping[str, HeldPages]:
        """The pages of every request for which ``allocate_up_to`` was called, by request id."""

    def settled(self, req: CachedRequest) -> None:
        """Release the pages that no later token of ``req`` reads.

        Call it when a step of the request is settled, and before its K/V is restored from the host tier, with
        ``num_confirmed`` including the restored tokens.
        """

    def take_unsent(self, req: CachedRequest) -> tuple[int, list[int]]:
        """Return the index of the first unsent page of ``req``, and all its unsent pages.

        A page is unsent until it is part of a plan. The returned pages are recorded as sent.
        """

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        """Returns descriptions of all errors in counters, locks and windows.

        The cost is proportional to the pool's number of pages.
        """

    def drop_owners(self, owners: Collection[int]) -> None:
        """Remove cached pages from the owners with these ``id()``. The caller calls ``repair``."""

    def is_intact(self, req: CachedRequest) -> bool:
        """True if no page of ``req`` is quarantined, and its shared pages are in the prefix tree."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A pool that lacks ``num_pages`` pages for the next step."""

    pool: KvPool
    num_pages: int


def total_demand(needs: Iterable[tuple[CachedRequest, int]], num_running: int) -> int:
    """Return the number of pages that the next step needs from a pool.

    needs: number of pages that each request needs for its next token or decode item. Requests that need no page may be
        left out.

    The next page of a partly prefilled protected request is part of the demand, so other requests may be retracted for
    it. If every running request is partly prefilled and needs a page, the demand is one page, because partly prefilled
    prompts, too, can fill a pool.
    """
    needs = list(needs)
    pages = sum(need for req, need in needs if req.is_decoding or req.protected)
    if pages == 0 and sum(need > 0 for _, need in needs) == num_running > 0:
        pages = 1
    return pages


def promised_pages(pool: KvPool, req: CachedRequest) -> int:
    """Return the number of pages reserved for a protected request: its maximum length, but at most the whole pool."""
    return min(pool.pages_for(req.max_kv_tokens), pool.capacity)


def first_too_small(pools: Sequence[KvPool], req: CachedRequest) -> KvPool:
    """Return the first pool that is too small for the request's known tokens, or ``pools[0]`` if none is too small."""
    known = len(req.known)
    return next((pool for pool in pools if pool.pages_for(known) > pool.capacity), pools[0])


def first_without_page(pools: Sequence[KvPool], req: CachedRequest) -> KvPool:
    """Return the first pool in which ``req`` lacks a page for its next token, or ``pools[0]`` if there is none."""
    return next((pool for pool in pools if pool.missing_pages(req, req.computed + 1)), pools[0])
