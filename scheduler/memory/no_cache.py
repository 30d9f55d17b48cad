"""A prefix cache that stores nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .cached_request import CachedRequest
from .ledger import PageOwner
from .node import Tail
from .prefix_cache import MatchResult
from .tree_part import TreePart, TreeParts


class NoCache:
    """The cache for ``--disable-radix-cache``. Every prompt is computed completely, except the pages of a tail.

    ``BasePrefixCache`` documents the methods.
    """

    evictable_pages = protected_pages = session_held_pages = evictable_session_pages = 0

    def __init__(self, parts: Sequence[TreePart] = ()) -> None:
        """parts: the memory of tails in other pools."""
        self.access_clock = 0
        self._parts = TreeParts(parts)

    def match_prefix(self, req: CachedRequest, limit: int | None = None, tail: Tail | None = None) -> MatchResult:
        if tail is None or tail.first:
            return MatchResult()
        return self._parts.match([], None, tail)

    def attach(self, req: CachedRequest, match: MatchResult) -> None:
        """Share the pages of the tail. Do nothing if the match is empty."""
        if match.tail is not None:
            match.tail.restore_to_req(req)
            self._parts.attached(req, match.tail)

    def publish(self, req: CachedRequest, num_pages: int) -> None:
        """Do nothing: the pages stay private."""

    def cache_finished_req(self, req: CachedRequest, num_pages: int) -> None:
        """Do nothing."""

    def release(self, req: CachedRequest) -> None:
        """Unlock the memory of a tail in other pools."""
        self.access_clock += 1
        self._parts.released(req, self.access_clock)

    def discard(self, node: object) -> None:
        """Do nothing."""

    def evict(self, num_pages: int, accessed_before: int | None = None) -> int:
        return 0

    def clear(self) -> None:
        """Do nothing."""

    def exclusively_locked_pages(self, req: CachedRequest) -> int:
        return 0

    def owners(self) -> list[tuple[PageOwner, Sequence[int]]]:
        return []

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        return []

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        return []

    def drop_pages(self, pages: Collection[int]) -> set[int]:
        """Return ``id(None)``, because the ``node`` of every request is None."""
        return {id(None)}

    def rebuild_locks(self, running: Sequence[CachedRequest]) -> None:
        """Do nothing."""
