"""The sliding-window pages of the prefix tree and of tails: which nodes have them, their locks, and their eviction.

A node can lose its pages in the sliding-window pool and keep its pages in the full-attention pool. The window pages
that it still has always belong to its last tokens: eviction frees the first ones, and a node loses its last tokens in
both pools at the same time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from ebbtide.errors import InvariantViolation

from ..allocator import PageAllocator
from ..ledger import PageOwner
from ..node import Node, PathElement
from ..tree_part import MatchPath
from .span_store import SpanStore
from .window_audit import validate_spans
from .window_span import WindowSpan


class WindowSpans:
    """Reads, locks and evicts the pages along paths of nodes.

    Locks apply to single pages, so a span can be locked in part.

    Attributes:
        store: the spans, with their counters.
        on_eviction: called with each tail of which ``evict`` has freed pages.
    """

    def __init__(self, allocator: PageAllocator, num_before: int) -> None:
        """num_before: number of pages before a match that the next token reads."""
        self.store = SpanStore(allocator)
        self.on_eviction: Callable[[PathElement], None] = _ignore
        self._allocator = allocator
        self._num_before = num_before

    def usable_match(self, path: MatchPath) -> int:
        """See ``TreePart``."""
        usable = end = 0
        begin = 0  # index of the first of the consecutive cached pages that end at ``end``
        for node, same in path:
            span = self.store.spans.get(node)
            num_missing = len(node.pages) - (0 if span is None else len(span.pages))
            if num_missing:
                begin = end + min(num_missing, same)
            end += same
            if end - begin >= self._num_before or not begin:
                usable = end
        return usable

    def num_locked(self, path: MatchPath) -> int:
        """See ``TreePart``."""
        end = sum(same for _, same in path)
        first, count = max(end - self._num_before, 0), 0
        for node, same in reversed(path):
            if end <= first:
                break
            span = self.store.spans.get(node)
            if span is not None:
                count += max(same - max(first - (end - same), len(node.pages) - span.num_locked), 0)
            end -= same
        return count

    def pages_of(self, node: PathElement, first: int, end: int) -> list[int]:
        """Return the pages from index ``first`` to ``end``, which is the end of ``node``.

        Raises InvariantViolation if a page is missing.
        """
        parts = [span.pages[len(span.pages) - count :] for span, count in self._path(node, first, end)]
        return [page for part in reversed(parts) for page in part]

    def num_exclusive(self, node: PathElement, first: int, end: int) -> int:
        """Return the number of pages that become evictable when a request that reads these pages is released."""
        exclusive = 0
        for span, count in self._path(node, first, end):
            others = max((number for number in span.users if number != count or span.users[number] > 1), default=0)
            exclusive += max(count - others, 0)
        return exclusive

    def lock(self, node: PathElement, first: int, end: int) -> None:
        """Lock the pages from index ``first`` to ``end``, the end of ``node``, for a request."""
        for span, count in self._path(node, first, end):
            self.store.relock(span, 0, count)

    def advance(self, node: PathElement, first: int, new_first: int, end: int) -> None:
        """Unlock the pages before ``new_first`` of a request that locked the pages from index ``first`` to ``end``."""
        remaining = end - max(new_first, 0)
        for span, count in self._path(node, first, end):
            kept = max(min(count, remaining), 0)
            remaining -= len(span.node.pages)
            if kept < count:
                if span.is_tree_node:  # after an aborted turn, the next turn continues at the end of the tail again
                    span.num_tail = min(span.num_tail, kept)
                self.store.relock(span, count, kept)

    def unlock(self, node: PathElement, first: int, end: int) -> None:
        """Unlock the pages of a request that ends or is retracted.

        ``evict`` frees them only after all pages deep inside paths.
        """
        for span, count in self._path(node, first, end):
            span.num_tail = count if span.is_tree_node else max(span.num_tail, count)
            self.store.relock(span, count, 0)

    def publish(self, node: Node, own: list[int], owner: PageOwner) -> list[int]:
        """Move a request's pages for the last tokens of ``node`` to the node, and lock them for the request.

        Frees the pages for tokens that already have a page in the node. Returns the node's pages for the same tokens.
        """
        span = self.store.span_for(node)
        num_new = max(len(own) - len(span.pages), 0)
        if num_new:
            self.store.prepend(span, own[:num_new], owner)
        if num_new < len(own):
            self._allocator.give(own[num_new:], owner)
        self.store.relock(span, 0, len(own))
        return span.pages[len(span.pages) - len(own) :]

    def extend(self, tail: PathElement, own: list[int], num_read: int, owner: PageOwner) -> None:
        """Move a request's pages for the tokens that were added to ``tail`` to the tail, and lock them.

        own: the pages for the last of these tokens. num_read: number of the tail's earlier pages that the request
            reads. If it reads none, there may be a gap before ``own``, and the earlier pages are freed.
        """
        span = self.store.spans.get(tail)
        if span is not None and not num_read:
            self.store.free(span, span.pages[:])
        if not own:
            return
        span = self.store.span_for(tail)
        self.store.append(span, own, owner)
        self.store.relock(span, num_read, num_read + len(own))

    def num_held(self, element: PathElement) -> int:
        """Return the number of pages of a node or tail."""
        return len(self.store.spans[element].pages) if element in self.store.spans else 0

    def trimmed(self, element: PathElement, num_pages: int) -> None:
        """See ``TreePart``."""
        span = self.store.spans.get(element)
        if span is not None:
            freed = span.pages[max(len(span.pages) - num_pages, 0) :]
            span.num_tail = max(span.num_tail - num_pages, 0)
            self.store.free(span, freed)

    def evict(self, num_pages: int, accessed_before: float = math.inf) -> int:
        """Free up to ``num_pages`` pages, in the order of ``EvictionOrder``.

        Returns the number of pages freed, including those of tails that thereby became unusable.
        """
        before = self._allocator.available_pages
        while (missing := before + num_pages - self._allocator.available_pages) > 0:
            span = self.store.order.pop(accessed_before)
            if span is None:
                break
            most = span.num_deep if span.num_deep > 0 else len(span.pages) - span.num_locked
            self.store.free(span, span.pages[: min(most, missing)])
            if not span.is_tree_node:
                self.on_eviction(span.node)
        return self._allocator.available_pages - before

    def has(self, node: PathElement, pages: list[int], end: int) -> bool:
        """True if these are the pages that end with the last page of ``node``, whose index is ``end - 1``."""
        try:
            return self.pages_of(node, end - len(pages), end) == pages
        except InvariantViolation:
            return False

    def rebuild(self, locks: Iterable[tuple[PathElement, int, int]]) -> None:
        """Recount pages and locks, and rebuild the eviction order. locks: the arguments of ``lock``."""
        self.store.unlock_all()
        for node, first, end in locks:
            self.lock(node, first, end)
        self.store.reorder()

    def validate(self, locks: Iterable[tuple[PathElement, int, int]]) -> list[str]:
        """Return descriptions of all errors in counters and locks. locks: the arguments of ``lock`` for all requests.

        The cost is proportional to the number of spans.
        """
        users: defaultdict[PathElement, Counter[int]] = defaultdict(Counter)
        for node, first, end in locks:
            for span, count in self._path(node, first, end):
                users[span.node][count] += 1
        store = self.store
        session_locked = store.session_held_pages - store.evictable_session_pages
        counted = {
            True: (store.evictable_pages, store.protected_pages),
            False: (store.evictable_session_pages, session_locked),
        }
        return validate_spans(store.spans.values(), users, counted)

    def _path(self, node: PathElement | None, first: int, end: int) -> Iterator[tuple[WindowSpan, int]]:
        """Yield the spans of the pages from index ``first`` to ``end``, the end of ``node``, last span first, each with
        the number of its last pages in that range.
        """
        while end > first:
            span = None if node is None else self.store.spans.get(node)
            start = end - (0 if node is None else len(node.pages))
            count = end - max(first, start)
            if span is None or node is None or len(span.pages) < count:
                raise InvariantViolation(f"page {end - count} of a window that a request reads is not in the tree")
            yield span, count
            node, end = node.parent, start


def _ignore(_tail: PathElement) -> None:
    """Do nothing: without sessions there are no tails."""
