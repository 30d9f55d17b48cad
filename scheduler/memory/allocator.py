"""The free list of a pool. The cost of an operation depends on the number of pages moved, not on the pool size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebbtide.errors import InvariantViolation

from .ledger import Ledger, PageOwner


class PageAllocator:
    """Allocates and frees the page numbers 0 … num_pages - 1.

    on_free: called with the pages that become free; None for no call. Tests use it to poison freed pages.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, on_free: Callable[[Sequence[int]], None] | None = None
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.ledger = Ledger(num_pages)
        self._free = list(range(num_pages - 1, -1, -1))
        self._on_free = on_free

    @property
    def available_pages(self) -> int:
        """Number of pages in the free list."""
        return len(self._free)

    def take(self, count: int, owner: PageOwner) -> list[int]:
        """Allocate ``count`` pages to ``owner`` and return their numbers.

        Raises InvariantViolation if fewer pages are free: the caller must have evicted pages if necessary.
        """
        if count > len(self._free):
            raise InvariantViolation(f"{owner.tag} needs {count} pages, but only {len(self._free)} are free")
        if count == 0:
            return []
        taken = self._free[-count:]
        taken.reverse()
        del self._free[-count:]
        self.ledger.move(tuple(taken), None, owner)  # the ledger stores a copy, because the owner modifies the list
        return taken

    def give(self, pages: Sequence[int], owner: PageOwner) -> None:
        """Return pages to the free list. Raises InvariantViolation if ``owner`` does not own all of the pages."""
        self.ledger.move(pages, owner, None)
        self._free.extend(reversed(pages))
        if self._on_free is not None:
            self._on_free(pages)

    def free_pages(self, start: int = 0, end: int | None = None) -> list[int]:
        """Return a copy of a slice of the free list, for audits."""
        return self._free[start:end]

    def reset(self, free: list[int]) -> None:
        """Replace the free list. For recovery only."""
        self._free = free[::-1]
