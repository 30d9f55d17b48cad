"""The spans of a window pool: which elements have one, their counters, and the order of their eviction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ..allocator import PageAllocator
from ..audit_rotation import AuditRotation
from ..ledger import PageOwner
from ..node import Node, PathElement, WindowObserver
from .window_order import EvictionOrder
from .window_span import WindowSpan


class SpanStore:
    """Every change of a span's pages or locks goes through the store, which updates counters and eviction order.

    Attributes:
        spans: the span of each node or tail that has one. A span has at least one page.
        order: the eviction order.
        evictable_pages: number of pages of tree nodes that no running request reads.
        protected_pages: number of pages of tree nodes that running requests read.
        session_held_pages: number of pages of tails.
        evictable_session_pages: number of pages of tails that no running request reads.
        access_clock: the tree's LRU clock at the last release.
        observer: notified of the pages of tree nodes that are added and removed; None for no notifications.
    """

    def __init__(self, allocator: PageAllocator) -> None:
        self.spans: dict[PathElement, WindowSpan] = {}
        self.order = EvictionOrder()
        self.evictable_pages = 0
        self.protected_pages = 0
        self.session_held_pages = 0
        self.evictable_session_pages = 0
        self.access_clock = 0
        self.observer: WindowObserver | None = None
        self._is_reported = True  # False after a change without notifications, until ``reorder``
        self._allocator = allocator
        self._rotation: AuditRotation[WindowSpan] = AuditRotation()

    def span_for(self, element: PathElement) -> WindowSpan:
        """Return the span of ``element``, or a new one, to which the caller adds pages."""
        return self.spans.get(element) or self._new_span(element)

    def prepend(self, span: WindowSpan, pages: list[int], owner: PageOwner) -> None:
        """Move pages of ``owner`` to the beginning of a span."""
        self._allocator.ledger.move(tuple(pages), owner, span)
        span.pages[:0] = pages
        self._count(span, len(pages), 0)
        self._report_stored(span, len(pages))

    def append(self, span: WindowSpan, pages: list[int], owner: PageOwner) -> None:
        """Move pages of ``owner`` to the end of the span of a tail."""
        self._allocator.ledger.move(tuple(pages), owner, span)
        span.pages += pages
        self._count(span, len(pages), 0)

    def split(self, upper: Node, lower: Node) -> None:
        """See ``TreePart``."""
        span, keep = self.spans.get(lower), len(lower.pages)
        if span is None or len(span.pages) <= keep:
            return
        top = self._new_span(upper, span.pages[:-keep], span.last_access)
        self._allocator.ledger.move(tuple(top.pages), span, top)
        del span.pages[:-keep]
        span.move_users(top)
        for half in (top, span):
            self.order.offer(half, len(self.spans))

    def relock(self, span: WindowSpan, before: int, after: int) -> None:
        """Change the number of last pages of ``span`` that one request reads from ``before`` to ``after``."""
        num_locked = span.num_locked
        span.relock(before, after)
        self._count(span, num_locked - span.num_locked, span.num_locked - num_locked)
        if after < before:
            span.last_access = self.access_clock
            self.order.offer(span, len(self.spans))

    def free(self, span: WindowSpan, pages: list[int]) -> None:
        """Free the first or the last pages of a span."""
        self._allocator.give(pages, span)
        self._count(span, -len(pages), 0)
        first = 0 if span.pages[: len(pages)] == pages else len(span.pages) - len(pages)
        if self.observer is not None and isinstance(span.node, Node):
            index = len(span.node.pages) - len(span.pages) + first
            self.observer.removed(span.node, index, index + len(pages))
        del span.pages[first : first + len(pages)]
        if span.pages:
            self.order.offer(span, len(self.spans))
        else:
            del self.spans[span.node]

    def keep(self, nodes: Iterable[Node]) -> None:
        """Remove the spans of all other nodes without freeing their pages. The caller calls ``unlock_all``."""
        tails = {tail: span for tail, span in self.spans.items() if not span.is_tree_node}
        self.spans = {node: self.spans[node] for node in nodes if node in self.spans} | tails
        self._is_reported = False

    def forget(self, tail: PathElement) -> None:
        """Remove the span of a tail without freeing its pages. The caller calls ``unlock_all``."""
        self.spans.pop(tail, None)

    def drop(self, spans: Collection[int]) -> None:
        """Remove the spans with these ``id()`` without freeing their pages. The caller calls ``unlock_all``."""
        self.spans = {node: span for node, span in self.spans.items() if id(span) not in spans}

    def unlock_all(self) -> None:
        """Remove all locks, and count the pages again. The caller locks them again and calls ``reorder``."""
        self._rotation.reset(self.spans.values())
        self.evictable_pages = self.protected_pages = self.session_held_pages = self.evictable_session_pages = 0
        for span in self.spans.values():
            span.users, span.num_locked = {}, 0
            self._count(span, len(span.pages), 0)

    def reorder(self) -> None:
        """Rebuild the eviction order. Report all pages if some were removed without a report."""
        self.order.clear()
        for span in self.spans.values():
            self.order.offer(span, len(self.spans))
            if not self._is_reported:
                self._report_stored(span, len(span.pages))
        self._is_reported = True

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """Yield every span with its pages."""
        return ((span, span.pages) for span in self.spans.values())

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``."""
        return self._rotation.next_share(share)

    def _new_span(self, element: PathElement, pages: Sequence[int] = (), last_access: int = 0) -> WindowSpan:
        span = self.spans[element] = WindowSpan(element, list(pages), last_access=last_access)
        self._rotation.add(span)
        return span

    def _count(self, span: WindowSpan, num_evictable: int, num_locked: int) -> None:
        """Change the counters of evictable and of locked pages."""
        if span.node.is_tree_node:
            self.evictable_pages += num_evictable
            self.protected_pages += num_locked
        else:
            self.evictable_session_pages += num_evictable
            self.session_held_pages += num_evictable + num_locked

    def _report_stored(self, span: WindowSpan, num_pages: int) -> None:
        """Notify the observer of the first ``num_pages`` pages of a span."""
        if self.observer is not None and isinstance(span.node, Node) and num_pages:
            index = len(span.node.pages) - len(span.pages)
            self.observer.stored(span.node, index, index + num_pages)
