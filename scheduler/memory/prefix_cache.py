"""The interface of prefix caches.

A wrapper, such as the one for sessions, implements the same protocol and delegates to the cache that it wraps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .cached_request import CachedRequest, CacheNode
from .ledger import PageOwner
from .node import Tail


@dataclass(slots=True)
class MatchResult:
    """The longest cached prefix of a request's known tokens."""

    pages: list[int] = field(default_factory=list)  # in order
    num_locked: int = 0  # number of these pages that are already locked, so that sharing them makes no page unavailable
    node: CacheNode | None = None  # the last node of the match, for ``attach``
    num_in_node: int = 0  # number of matching pages of ``node``
    tail: Tail | None = None  # the pages that follow those of ``node``, if the match includes any of a tail
    num_in_tail: int = 0  # number of matching pages of ``tail``
    num_locked_elsewhere: list[int] = field(default_factory=list)  # ``num_locked`` for every other pool, in order

    def num_locked_in(self, pool: int) -> int:
        """Return ``num_locked`` for the pool with this index in ``RunnerInfo.pools``."""
        if pool == 0:
            return self.num_locked
        return self.num_locked_elsewhere[pool - 1] if self.num_locked_elsewhere else 0


class AuditedCache(Protocol):
    """The part of the cache interface that audits and recovery use."""

    def owners(self) -> Iterable[tuple[PageOwner, Sequence[int]]]:
        """Yield each owner of pages in the cache, with its pages. The cost is proportional to the cache size."""

    def next_owners(self, share: float) -> Iterable[tuple[PageOwner, Sequence[int]]]:
        """Yield some of the owners, with their pages. Successive calls cover the whole cache in rotation.

        share: the fraction of all owners to yield.
        """

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        """Return descriptions of all errors in counters, locks and data structures.

        The cost is proportional to the cache size.
        """

    def drop_pages(self, pages: Collection[int]) -> set[int]:
        """Remove each node that owns one of ``pages``, and all its descendants, from the cache.

        Returns the ``id()`` of each remaining node. Locks, counters and the free list become inconsistent; the caller
        must rebuild them.
        """

    def rebuild_locks(self, running: Sequence[CachedRequest]) -> None:
        """Derive locks and counters from ``running`` and the cached pages, and rebuild the eviction order."""


class BasePrefixCache(AuditedCache, Protocol):
    """A cache of computed pages that later requests can share."""

    def match_prefix(self, req: CachedRequest, limit: int | None = None, tail: Tail | None = None) -> MatchResult:
        """Return the longest cached prefix of ``req``, at most ``limit`` pages.

        The match leaves at least one known token to compute. The search has no side effects, so it can be repeated for
        a request that was not admitted.

        tail: pages of tokens of ``req`` that the match includes if the cache has all pages before them.
        """

    def attach(self, req: CachedRequest, match: MatchResult) -> None:
        """Assign the matched pages to the request (``pages``, ``num_shared``, ``node``) and lock them.

        If the match includes a tail, it must include all pages of the tail. Nothing may be evicted or published between
        ``match_prefix`` and this call.
        """

    def publish(self, req: CachedRequest, num_pages: int) -> None:
        """Move the request's first ``num_pages`` pages into the cache and lock them for the request.

        If the tokens of a page are cached already, the request switches to the cached page and its own page is freed.
        In that case ``sent_pages`` is lowered, so that the next plan updates the runner's page table before the freed
        page is reused.
        """

    def cache_finished_req(self, req: CachedRequest, num_pages: int) -> None:
        """Add the first ``num_pages`` pages of a request that finished normally to the cache.

        The caller must then call ``release``.
        """

    def release(self, req: CachedRequest) -> None:
        """Unlock the request's shared pages. The pages stay in the cache."""

    def discard(self, node: object) -> None:
        """Free those pages of a released request's prefix that no other request uses, and all pages cached below them.

        node: the value of the request's ``node`` before its release.
        """

    def evict(self, num_pages: int, accessed_before: int | None = None) -> int:
        """Free up to ``num_pages`` pages, least recently used first, and return the number of pages freed.

        accessed_before: evict only pages that were last accessed before this value of ``access_clock``.
        """

    def clear(self) -> None:
        """Free all unlocked pages and notify the observer that the cache is empty. No request may be running."""

    def exclusively_locked_pages(self, req: CachedRequest) -> int:
        """Return the number of shared pages that only ``req`` locks. They become evictable when it is released."""

    @property
    def evictable_pages(self) -> int:
        """Number of unlocked pages, without those of sessions, as counted by the cache."""

    @property
    def protected_pages(self) -> int:
        """Number of locked pages, without those of sessions, as counted by the cache."""

    @property
    def session_held_pages(self) -> int:
        """Number of pages of sessions, as counted by the cache."""

    @property
    def evictable_session_pages(self) -> int:
        """Number of pages of sessions that ``evict`` can free."""

    @property
    def access_clock(self) -> int:
        """The LRU clock: a number that increases with every release."""
