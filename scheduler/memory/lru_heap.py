"""Items in the order of their last access, for eviction."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Accessed(Protocol):
    """An object that records its last access."""

    last_access: int


T = TypeVar("T", bound=Accessed)


class LruHeap(Generic[T]):
    """A heap of items by last access, with lazy deletion.

    An entry is stale if its item was accessed after it was offered, or if ``is_evictable`` is False for the item. Stale
    entries are skipped: the item is offered again when it becomes evictable again.
    """

    def __init__(self, is_evictable: Callable[[T], bool]) -> None:
        self._is_evictable = is_evictable
        self._entries: list[tuple[int, int, T]] = []
        self._serial = 0

    def __len__(self) -> int:
        """The number of entries, stale ones included."""
        return len(self._entries)

    def offer(self, item: T, num_live: int) -> None:
        """Add an evictable item. num_live: number of items that exist, which bounds the number of stale entries."""
        self._serial += 1
        heapq.heappush(self._entries, (item.last_access, self._serial, item))
        if len(self._entries) > 64 + 4 * num_live:
            self._entries = list({id(entry[2]): entry for entry in self._entries if self._is_current(entry)}.values())
            heapq.heapify(self._entries)

    def pop(self, end: float) -> T | None:
        """Remove and return the item with the oldest access before ``end``; None if there is none."""
        while self._entries and self._entries[0][0] < end:
            entry = heapq.heappop(self._entries)
            if self._is_current(entry):
                return entry[2]
        return None

    def clear(self) -> None:
        """Remove all items."""
        self._entries = []

    def _is_current(self, entry: tuple[int, int, T]) -> bool:
        return entry[0] == entry[2].last_access and self._is_evictable(entry[2])
