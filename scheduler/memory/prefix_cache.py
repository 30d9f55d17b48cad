"""What a prefix cache is to the scheduler, and the one that never remembers anything.

A wrapper (sessions) implements the same protocol and hands on what is not its business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .ledger import PageOwner

if TYPE_CHECKING:
    from ..request import Request


class CacheNode(Protocol):
    """Where a request's shared pages end; only the cache that made it looks inside."""


@dataclass(slots=True)
class MatchResult:
    """The longest usable prefix of a request's known tokens.

    pages: in order. num_locked: how many of them are locked by running requests already, so that using them costs
    the pool nothing. node, num_in_node: where the match ends, for ``attach``.
    """

    pages: list[int] = field(default_factory=list)
    num_locked: int = 0
    node: CacheNode | None = None
    num_in_node: int = 0


class CacheBooks(Protocol):
    """A cache as its audits and repairs see it."""

    def owners(self) -> Iterable[tuple[PageOwner, Sequence[int]]]:
        """Everyone in here who holds pages, with those pages. Costs the whole cache."""

    def next_owners(self, share: float) -> Iterable[tuple[PageOwner, Sequence[int]]]:
        """The next ``share`` of all holders, in turn; all have been seen after 1 / share calls."""

    def faults(self, running: Sequence[Request]) -> list[str]:
        """What its counts, locks and structure have wrong, in words. Costs the whole cache."""

    def cut(self, doubt: Collection[int]) -> set[int]:
        """Let go of every holder of a page in ``doubt`` and of all that needs it.

        Returns the identities of the nodes that are left. Locks and counters are left to ``relock``, pages to the
        recovery that calls both.
        """

    def relock(self, running: Sequence[Request]) -> None:
        """Count locks, pages and eviction order anew."""


class BasePrefixCache(CacheBooks, Protocol):
    """Computed pages that may be used again."""

    def match_prefix(self, req: Request, limit: int | None = None) -> MatchResult:
        """What ``attach`` would give, at most ``limit`` pages. Changes nothing: a request turned away by admission asks
        again.

        At least one known token is left to compute.
        """

    def attach(self, req: Request, match: MatchResult) -> None:
        """Lend the matched pages to the request (``pages``, ``num_shared``, ``node``) and lock them.

        ``match`` must be of this moment: nothing was evicted or published since.
        """

    def publish(self, req: Request, num_pages: int) -> None:
        """Move the request's first ``num_pages`` pages into the cache and keep them locked for it.

        A page whose tokens are in the cache already is given back and the request is switched to the cached one;
        ``sent_pages`` is lowered so that the runner learns of it before the copy can be written by anybody else.
        """

    def cache_finished_req(self, req: Request, num_pages: int) -> None:
        """Keep the first ``num_pages`` pages of a request that has ended well; it is released next."""

    def release(self, req: Request) -> None:
        """Unlock what the request shares; those pages stay in the cache."""

    def evict(self, num_pages: int, before: int | None = None) -> int:
        """Free up to ``num_pages`` pages, least recently used first; returns how many really became free.

        before: only what was last used before that ``tick``.
        """

    def clear(self) -> None:
        """Free everything that nobody uses, and tell whoever follows the cache that it is empty. No request runs."""

    def lock_only(self, req: Request) -> int:
        """Shared pages that only this request locks: they become evictable when it leaves."""

    @property
    def evictable_pages(self) -> int:
        """Pages that ``evict`` can free, by the cache's own count."""

    @property
    def protected_pages(self) -> int:
        """Locked pages, by the cache's own count."""

    @property
    def session_held_pages(self) -> int:
        """Pages kept for sessions, by the cache's own count."""

    @property
    def soft_pages(self) -> int:
        """Those of them that ``evict`` can free."""

    @property
    def tick(self) -> int:
        """Rises with every release: when something was last used."""


class NoCache:
    """``--disable-radix-cache``: every prompt is computed."""

    evictable_pages = 0
    protected_pages = 0
    session_held_pages = 0
    soft_pages = 0
    tick = 0

    def match_prefix(self, req: Request, limit: int | None = None) -> MatchResult:
        """Nothing, always."""
        return MatchResult()

    def attach(self, req: Request, match: MatchResult) -> None:
        """Nothing to lend."""

    def publish(self, req: Request, num_pages: int) -> None:
        """Nothing is kept; the pages stay the request's own."""

    def cache_finished_req(self, req: Request, num_pages: int) -> None:
        """Nothing is kept."""

    def release(self, req: Request) -> None:
        """Nothing was lent."""

    def evict(self, num_pages: int, before: int | None = None) -> int:
        """There is nothing to evict."""
        return 0

    def clear(self) -> None:
        """There is nothing."""

    def lock_only(self, req: Request) -> int:
        """Nothing is shared."""
        return 0

    def owners(self) -> list[tuple[PageOwner, Sequence[int]]]:
        """Nobody."""
        return []

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """Nobody."""
        return []

    def faults(self, running: Sequence[Request]) -> list[str]:
        """There is nothing that could be wrong."""
        return []

    def cut(self, doubt: Collection[int]) -> set[int]:
        """Requests share nothing, which stays so."""
        return {id(None)}

    def relock(self, running: Sequence[Request]) -> None:
        """There is nothing to lock."""
