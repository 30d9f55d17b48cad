"""The order in which the spans of a window pool are evicted."""

from __future__ import annotations

from ..lru_heap import LruHeap
from .window_span import WindowSpan


class EvictionOrder:
    """Pages deep inside a path come first, because only a request that branches there can use them; then ends of paths.

    Of both, the least recently used come first.
    """

    def __init__(self) -> None:
        self._deep: LruHeap[WindowSpan] = LruHeap(lambda span: span.num_deep > 0)
        self._ends: LruHeap[WindowSpan] = LruHeap(lambda span: len(span.pages) > span.num_locked)

    def offer(self, span: WindowSpan, num_live: int) -> None:
        """Add a span that may have pages to evict. num_live: number of spans that exist."""
        if span.num_deep > 0:
            self._deep.offer(span, num_live)
        elif len(span.pages) > span.num_locked:
            self._ends.offer(span, num_live)

    def pop(self, accessed_before: float) -> WindowSpan | None:
        """Remove and return the next span that was accessed before this time; None if there is none.

        Its first pages can be evicted: ``num_deep`` pages, or, if that is not positive, all that are not locked.
        """
        return self._deep.pop(accessed_before) or self._ends.pop(accessed_before)

    def clear(self) -> None:
        """Remove all spans."""
        self._deep.clear()
        self._ends.clear()
