"""The sliding-window pages of the prefix tree and of tails: which nodes have them, their locks, and their eviction.

A node can lose its pages in the sliding-window pool and keep its pages in the full-attention pool. The window pages
that it still has always belong to its last tokens: eviction frees the first ones, and a node loses its last tokens in
both pools at the same time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ebbtide.errors import InvariantViolation

from ..allocator import PageAllocator
from ..ledger import PageOwner
from ..node import Node, PathElement, WindowObserver
from ..tree_part import MatchPath
from .window_audit import validate_spans
from .window_order import EvictionOrder
from .window_span import WindowSpan


class WindowSpans:
    """All spans of one pool. Locks apply to single pages, so a span can be locked in part.

    Attributes:
        evictable_pages: number of pages of tree nodes that no running request reads.
        protected_pages: number of pages of tree nodes that running requests read.
        session_held_pages: number of pages of tails.
        evictable_session_pages: number of pages of tails that no running request reads.
        access_clock: the tree's LRU clock at the last release.
        on_eviction: called with each tail of which ``evict`` has freed pages.
        observer: notified of the pages of tree nodes that are added and removed; None for no notifications.
    """

    def __init__(self, allocator: PageAllocator, num_before: int) -> None:
        """num_before: number of pages before a match that the next token reads."""
        self.evictable_pages = 0
        self.protected_pages = 0
        self.session_held_pages = 0
        self.evictable_session_pages = 0
        self.access_clock = 0
        self.on_eviction: Callable[[PathElement], None] = _ignore
        self.observer: WindowObserver | None = None
        self._is_reported = True  # False after a change without notifications, until ``rebuild``
        self._allocator = allocator
        self._num_before = num_before
        self._spans: dict[PathElement, WindowSpan] = {}
        self._rotation: deque[WindowSpan] = deque()  # in audit order; spans without pages are removed lazily
        self._order = EvictionOrder()

    def usable_match(self, path: MatchPath) -> int:
        """See ``TreePart``."""
        usable = end = 0
        begin = 0  # index of the first of the consecutive cached pages that end at ``end``
        for node, same in path:
            span = self._spans.get(node)
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
            span = self._spans.get(node)
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
            self._relock(span, 0, count)

    def advance(self, node: PathElement, first: int, new_first: int, end: int) -> None:
        """Unlock the pages before ``new_first`` of a request that locked the pages from index ``first`` to ``end``."""
        remaining = end - max(new_first, 0)
        for span, count in self._path(node, first, end):
            kept = max(min(count, remaining), 0)
            remaining -= len(span.node.pages)
            if kept < count:
                if span.is_tree_node:  # after an aborted turn, the next turn continues at the end of the tail again
                    span.num_tail = min(span.num_tail, kept)
                self._relock(span, count, kept)

    def unlock(self, node: PathElement, first: int, end: int) -> None:
        """Unlock the pages of a request that ends or is retracted.

        ``evict`` frees them only after all pages deep inside paths.
        """
        for span, count in self._path(node, first, end):
            span.num_tail = count if span.is_tree_node else max(span.num_tail, count)
            self._relock(span, count, 0)

    def publish(self, node: Node, own: list[int], owner: PageOwner) -> list[int]:
        """Move a request's pages for the last tokens of ``node`` to the node, and lock them for the request.

        Frees the pages for tokens that already have a page in the node. Returns the node's pages for the same tokens.
        """
        span = self._spans.get(node) or self._new_span(node)
        num_new = max(len(own) - len(span.pages), 0)
        if num_new:
            self._allocator.ledger.move(tuple(own[:num_new]), owner, span)
            span.pages[:0] = own[:num_new]
            self._count(span, num_new, 0)
            self._report_stored(span, num_new)
        if num_new < len(own):
            self._allocator.give(own[num_new:], owner)
        self._relock(span, 0, len(own))
        return span.pages[len(span.pages) - len(own) :]

    def extend(self, tail: PathElement, own: list[int], num_read: int, owner: PageOwner) -> None:
        """Move a request's pages for the tokens that were added to ``tail`` to the tail, and lock them.

        own: the pages for the last of these tokens. num_read: number of the tail's earlier pages that the request
            reads. If it reads none, there may be a gap before ``own``, and the earlier pages are freed.
        """
        span = self._spans.get(tail)
        if span is not None and not num_read:
            self._free(span, span.pages[:])
        if not own:
            return
        span = self._spans.get(tail) or self._new_span(tail)
        self._allocator.ledger.move(tuple(own), owner, span)
        span.pages += own
        self._count(span, len(own), 0)
        self._relock(span, num_read, num_read + len(own))

    def num_held(self, element: PathElement) -> int:
        """Return the number of pages of a node or tail."""
        return len(self._spans[element].pages) if element in self._spans else 0

    def split(self, upper: Node, lower: Node) -> None:
        """See ``TreePart``."""
        span, keep = self._spans.get(lower), len(lower.pages)
        if span is None or len(span.pages) <= keep:
            return
        top = self._new_span(upper, span.pages[:-keep], span.last_access)
        self._allocator.ledger.move(tuple(top.pages), span, top)
        del span.pages[:-keep]
        top.num_tail, span.num_tail = max(span.num_tail - keep, 0), min(span.num_tail, keep)
        for number, count in list(span.users.items()):
            if number > keep:
                del span.users[number]
                top.users[number - keep] = count
                span.users[keep] = span.users.get(keep, 0) + count
        for half in (top, span):
            half.num_locked = max(half.users, default=0)
            self._order.offer(half, len(self._spans))

    def trimmed(self, element: PathElement, num_pages: int) -> None:
        """See ``TreePart``."""
        span = self._spans.get(element)
        if span is not None:
            freed = span.pages[max(len(span.pages) - num_pages, 0) :]
            span.num_tail = max(span.num_tail - num_pages, 0)
            self._free(span, freed)

    def evict(self, num_pages: int, accessed_before: float = math.inf) -> int:
        """Free up to ``num_pages`` pages, in the order of ``EvictionOrder``.

        Returns the number of pages freed, including those of tails that thereby became unusable.
        """
        before = self._allocator.available_pages
        while (missing := before + num_pages - self._allocator.available_pages) > 0:
            span = self._order.pop(accessed_before)
            if span is None:
                break
            most = span.num_deep if span.num_deep > 0 else len(span.pages) - span.num_locked
            self._free(span, span.pages[: min(most, missing)])
            if not span.is_tree_node:
                self.on_eviction(span.node)
        return self._allocator.available_pages - before

    def has(self, node: PathElement, pages: list[int], end: int) -> bool:
        """True if these are the pages that end with the last page of ``node``, whose index is ``end - 1``."""
        try:
            return self.pages_of(node, end - len(pages), end) == pages
        except InvariantViolation:
            return False

    def kept(self, nodes: Collection[Node]) -> None:
        """See ``TreePart``."""
        tails = {tail: span for tail, span in self._spans.items() if not span.is_tree_node}
        self._spans = {node: self._spans[node] for node in nodes if node in self._spans} | tails
        self._is_reported = False

    def forgotten(self, tail: PathElement) -> None:
        """See ``TailPart``."""
        self._spans.pop(tail, None)

    def drop(self, spans: Collection[int]) -> None:
        """Remove the spans with these ``id()`` without freeing their pages. The caller calls ``rebuild``."""
        self._spans = {node: span for node, span in self._spans.items() if id(span) not in spans}

    def rebuild(self, locks: Iterable[tuple[PathElement, int, int]]) -> None:
        """Recount pages and locks, and rebuild the eviction order. locks: the arguments of ``lock``."""
        self._rotation = deque(self._spans.values())
        self._order.clear()
        self.evictable_pages = self.protected_pages = self.session_held_pages = self.evictable_session_pages = 0
        for span in self._rotation:
            span.users, span.num_locked = {}, 0
            self._count(span, len(span.pages), 0)
        for node, first, end in locks:
            self.lock(node, first, end)
        for span in self._rotation:
            self._order.offer(span, len(self._spans))
            if not self._is_reported:
                self._report_stored(span, len(span.pages))
        self._is_reported = True

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """Yield every span with its pages."""
        return ((span, span.pages) for span in self._spans.values())

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``."""
        seen: list[tuple[PageOwner, Sequence[int]]] = []
        for _ in range(math.ceil(len(self._rotation) * share)):
            span = self._rotation.popleft()
            if span.pages:
                self._rotation.append(span)
                seen.append((span, span.pages))
        return seen

    def validate(self, locks: Iterable[tuple[PathElement, int, int]]) -> list[str]:
        """Return descriptions of all errors in counters and locks. locks: the arguments of ``lock`` for all requests.

        The cost is proportional to the number of spans.
        """
        users: defaultdict[PathElement, Counter[int]] = defaultdict(Counter)
        for node, first, end in locks:
            for span, count in self._path(node, first, end):
                users[span.node][count] += 1
        session_locked = self.session_held_pages - self.evictable_session_pages
        counted = {
            True: (self.evictable_pages, self.protected_pages),
            False: (self.evictable_session_pages, session_locked),
        }
        return validate_spans(self._spans.values(), users, counted)

    def _new_span(self, element: PathElement, pages: Sequence[int] = (), last_access: int = 0) -> WindowSpan:
        span = self._spans[element] = WindowSpan(element, list(pages), last_access=last_access)
        self._rotation.append(span)
        return span

    def _count(self, span: WindowSpan, num_evictable: int, num_locked: int) -> None:
        """Change the counters of evictable and of locked pages."""
        if span.node.is_tree_node:
            self.evictable_pages += num_evictable
            self.protected_pages += num_locked
        else:
            self.evictable_session_pages += num_evictable
            self.session_held_pages += num_evictable + num_locked

    def _path(self, node: PathElement | None, first: int, end: int) -> Iterator[tuple[WindowSpan, int]]:
        """Yield the spans of the pages from index ``first`` to ``end``, the end of ``node``, last span first, each with
        the number of its last pages in that range.
        """
        while end > first:
            span = None if node is None else self._spans.get(node)
            start = end - (0 if node is None else len(node.pages))
            count = end - max(first, start)
            if span is None or node is None or len(span.pages) < count:
                raise InvariantViolation(f"page {end - count} of a window that a request reads is not in the tree")
            yield span, count
            node, end = node.parent, start

    def _relock(self, span: WindowSpan, before: int, after: int) -> None:
        """Change the number of last pages of ``span`` that one request reads from ``before`` to ``after``."""
        num_locked = span.num_locked
        span.relock(before, after)
        self._count(span, num_locked - span.num_locked, span.num_locked - num_locked)
        if after < before:
            span.last_access = self.access_clock
            self._order.offer(span, len(self._spans))

    def _free(self, span: WindowSpan, pages: list[int]) -> None:
        """Free the first or the last pages of a span."""
        self._allocator.give(pages, span)
        self._count(span, -len(pages), 0)
        first = 0 if span.pages[: len(pages)] == pages else len(span.pages) - len(pages)
        if self.observer is not None and isinstance(span.node, Node):
            index = len(span.node.pages) - len(span.pages) + first
            self.observer.removed(span.node, index, index + len(pages))
        del span.pages[first : first + len(pages)]
        if span.pages:
            self._order.offer(span, len(self._spans))
        else:
            del self._spans[span.node]

    def _report_stored(self, span: WindowSpan, num_pages: int) -> None:
        """Notify the observer of the first ``num_pages`` pages of a span."""
        if self.observer is not None and isinstance(span.node, Node) and num_pages:
            index = len(span.node.pages) - len(span.pages)
            self.observer.stored(span.node, index, index + num_pages)


def _ignore(_tail: PathElement) -> None:
    """Do nothing: without sessions there are no tails."""
