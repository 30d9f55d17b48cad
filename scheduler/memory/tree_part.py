"""The pages of additional pools in the prefix tree, such as the pages of a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from .cached_request import CachedRequest
from .node import Node, PathElement, Tail
from .prefix_cache import MatchResult

# The matching nodes from the root on, possibly followed by a tail, each with the number of its pages that match.
MatchPath = Sequence[tuple[PathElement, int]]


class TreePart(Protocol):
    """A prefix tree's pages in one additional pool (any pool except the first), such as the pages of a sliding window.

    The tree calls these methods after every change of the tree's structure. ``req`` is always a running request whose
    shared pages end with the last page of ``node``.
    """

    def usable_match(self, path: MatchPath) -> int:
        """Returns the largest number of pages, at most those of ``path``, after which everything that the next token
        reads in this pool is cached.
        """

    def num_locked(self, path: MatchPath) -> int:
        """Returns the number of this pool's pages that running requests have locked and that a request with this match
        would share.
        """

    def attached(self, req: CachedRequest, end: PathElement) -> None:
        """Share this pool's memory of the prefix with ``req``, and lock it. end: the last element of the prefix."""

    def node_ends(self, req: CachedRequest, num_pages: int) -> Sequence[int]:
        """Returns the page indexes, at most ``num_pages`` and ascending, at which nodes of the request's prefix must
        end.
        """

    def published(self, req: CachedRequest, node: Node, start: int) -> None:
        """Move the request's memory to ``node`` and lock it. start: page index of the node's first page."""

    def split(self, upper: Node, lower: Node) -> None:
        """Divide the memory of ``lower``, whose first pages were moved to the new node ``upper``."""

    def trimmed(self, leaf: Node, num_pages: int) -> None:
        """Free the memory of the last ``num_pages`` pages of ``leaf``, which the leaf has lost."""

    def released(self, req: CachedRequest, access_clock: int) -> None:
        """Unlock all memory that ``req`` shares. access_clock: that of the cache."""

    def kept(self, nodes: Collection[Node]) -> None:
        """Remove the records of all other nodes, without freeing their pages. The caller rebuilds the accounting."""


class TailPart(Protocol):
    """The pages of tails in one additional pool.

    Attributes:
        name: the name of the pool.
        on_eviction: called with each tail of which the pool has evicted pages.
    """

    name: str
    on_eviction: Callable[[PathElement], None]

    def can_continue(self, req: CachedRequest, num_pages: int) -> bool:
        """True if ``req`` has all memory of this pool that the token after its first ``num_pages`` pages reads."""

    def extended(self, req: CachedRequest, tail: Tail, num_new: int) -> None:
        """Move the request's memory of the last ``num_new`` pages of ``tail`` to the tail, and lock it for ``req``."""

    def trimmed(self, element: PathElement, num_pages: int) -> None:
        """Free the memory of the last ``num_pages`` pages of an element, which it loses."""

    def forgotten(self, tail: Tail) -> None:
        """Forget the memory of ``tail``. The caller rebuilds the accounting."""

    def is_usable(self, tail: Tail) -> bool:
        """False if no match can include pages of ``tail``, because the memory that the next token reads is gone."""

    def tail_pages(self, tail: Tail) -> int:
        """Returns the number of pages of ``tail`` in this pool."""

    @property
    def session_held_pages(self) -> int:
        """Number of pages of all tails in this pool, as the pool counts them."""


class TreeParts:
    """All additional pools of a tree, in the order of ``RunnerInfo.pools``. ``TreePart`` describes the methods."""

    def __init__(self, parts: Sequence[TreePart]) -> None:
        self._parts = parts

    def match(self, path: MatchPath, root: Node | None, tail: Tail | None = None) -> MatchResult:
        """Return the longest part of a match that is usable in every pool.

        root: the node for an empty match. tail: the tail that follows ``path``; None for none.
        """
        path = self._usable(path if tail is None else [*path, (tail, len(tail.pages))])
        match = MatchResult(node=root)
        for element, same in path:
            match.pages += element.pages[:same]
            match.num_locked += same if element.locks else 0
            if isinstance(element, Node):
                match.node, match.num_in_node = element, same
            elif same:
                match.tail, match.num_in_tail = tail, same
        match.num_locked_elsewhere = [part.num_locked(path) for part in self._parts]
        return match

    def attached(self, req: CachedRequest, end: PathElement) -> None:
        """See ``TreePart``."""
        for part in self._parts:
            part.attached(req, end)

    def node_ends(self, req: CachedRequest, num_pages: int) -> list[int]:
        """See ``TreePart``. Includes ``num_pages``."""
        ends = {end for part in self._parts for end in part.node_ends(req, num_pages)}
        return sorted({*ends, num_pages})

    def published(self, req: CachedRequest, node: Node, start: int) -> None:
        """See ``TreePart``."""
        for part in self._parts:
            part.published(req, node, start)

    def split(self, upper: Node, lower: Node) -> None:
        """See ``TreePart``."""
        for part in self._parts:
            part.split(upper, lower)

    def trimmed(self, leaf: Node, num_pages: int) -> None:
        """See ``TreePart``."""
        for part in self._parts:
            part.trimmed(leaf, num_pages)

    def released(self, req: CachedRequest, access_clock: int) -> None:
        """See ``TreePart``."""
        for part in self._parts:
            part.released(req, access_clock)

    def kept(self, nodes: Collection[Node]) -> None:
        """See ``TreePart``."""
        for part in self._parts:
            part.kept(nodes)

    def _usable(self, path: MatchPath) -> MatchPath:
        """Shorten the path until all pools agree. The loop ends because each iteration shortens it."""
        while self._parts:
            num_pages = sum(same for _, same in path)
            usable = min(part.usable_match(path) for part in self._parts)
            if usable == num_pages:
                break
            path = _first_pages(path, usable)
        return path


def _first_pages(path: MatchPath, num_pages: int) -> MatchPath:
    shorter = []
    for node, same in path:
        if num_pages <= 0:
            break
        shorter.append((node, min(same, num_pages)))
        num_pages -= same
    return shorter
