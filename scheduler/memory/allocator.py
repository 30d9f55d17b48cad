"""The free list. Taking and giving cost what they move, whatever the size of the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebbtide.errors import InvariantViolation

from .ledger import Holder, Ledger


class PageAllocator:
    """Hands out page numbers 0 … num_pages - 1 and takes them back.

    on_free, when given, sees every page that becomes free (tests poison them).
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
        """Pages in the free list, by its own count."""
        return len(self._free)

    def available_size(self) -> int:
        """Free tokens, in whole pages."""
        return len(self._free) * self.page_size

    def take(self, count: int, holder: Holder) -> list[int]:
        """``count`` page numbers; ``holder`` becomes their holder.

        Make room first: taking more than is free is a bug, not pressure, and raises InvariantViolation.
        """
        if count > len(self._free):
            raise InvariantViolation(f"{holder.tag} takes {count} pages but only {len(self._free)} are free")
        if count == 0:
            return []
        taken = self._free[-count:]
        taken.reverse()
        del self._free[-count:]
        self.ledger.move(tuple(taken), None, holder)  # the list becomes the holder's and changes
        return taken

    def give(self, pages: Sequence[int], holder: Holder) -> None:
        """Back to the free list. Raises InvariantViolation when ``holder`` does not hold one of them."""
        self.ledger.move(pages, holder, None)
        self._free.extend(reversed(pages))
        if self._on_free is not None:
            self._on_free(pages)

    def free_pages(self, start: int = 0, end: int | None = None) -> list[int]:
        """A copy of the free list or of a part of it, for audits."""
        return self._free[start:end]

    def reset(self, free: list[int]) -> None:
        """Make ``free`` the free list: for a recovery that has found out."""
        self._free = free[::-1]
