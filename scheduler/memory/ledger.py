"""The page ledger: exactly one holder for every page.

It is the second witness of the books. It counts nothing; each holder counts its own pages from its own structure.
"""

from __future__ import annotations

from collections.abc import Iterable

from ebbtide.errors import InvariantViolation

FREE = None


class Ledger:
    """page number → holder. A holder is any object with identity; None is the free list."""

    def __init__(self, num_pages: int) -> None:
        self._holders: list[object] = [FREE] * num_pages

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, page: int) -> object:
        """Who holds ``page``; None when it is free."""
        return self._holders[page]

    def move(self, pages: Iterable[int], old: object, new: object) -> None:
        """Hand pages from one holder to another. Raises InvariantViolation when ``old`` does not hold one of them."""
        holders = self._holders
        for page in pages:
            if holders[page] is not old:
                raise InvariantViolation(
                    f"page {page} is held by {_name(holders[page])}, so {_name(old)} cannot hand it to {_name(new)}"
                )
            holders[page] = new

    def held_by(self, holder: object) -> list[int]:
        """All pages of one holder. Walks the whole ledger: for audits and messages, never for a step."""
        return [page for page, other in enumerate(self._holders) if other is holder]


def _name(holder: object) -> str:
    return "the free list" if holder is FREE else str(holder)
