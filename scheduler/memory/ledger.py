"""The page ledger: exactly one holder for every page.

It is the second witness of the books. It counts nothing; each holder counts its own pages from its own structure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Protocol

from ebbtide.errors import InvariantViolation

REMEMBERED = 2048  # events that a message about a page can look back on
SHOWN_PAGES = 8  # of one move


class Holder(Protocol):
    """Whoever holds pages: compared by identity, known in messages by its tag."""

    @property
    def tag(self) -> str: ...


class Ledger:
    """page number → holder. None is the free list."""

    def __init__(self, num_pages: int) -> None:
        self._holders: list[Holder | None] = [None] * num_pages
        self._events: deque[tuple[str, str, Sequence[int]]] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def whose(self) -> Sequence[Holder | None]:
        """The ledger itself, by page number, for those who must not spend a call a page."""
        return self._holders

    def holder(self, page: int) -> Holder | None:
        """Who holds ``page``; None when it is free."""
        return self._holders[page]

    def move(self, pages: Sequence[int], old: Holder | None, new: Holder | None) -> None:
        """Hand pages from one holder to another. Raises InvariantViolation when ``old`` does not hold one of them."""
        self._events.append((tag(old), tag(new), pages))
        holders = self._holders
        for page in pages:
            if holders[page] is not old:
                raise InvariantViolation(
                    f"page {page} is held by {tag(holders[page])}, so {tag(old)} cannot hand it to {tag(new)}; "
                    f"its last moves: {self.history([page])}"
                )
            holders[page] = new

    def holders(self, pages: Sequence[int]) -> list[Holder | None]:
        """Who holds each of them. Costs some 10 ns a page, and what the processor takes to fetch it."""
        if len(pages) < 2:  # of one page, itemgetter would not make a tuple
            return [self._holders[page] for page in pages]
        return list(itemgetter(*pages)(self._holders))

    def agrees(self, pages: Sequence[int], holder: Holder | None) -> bool:
        """Whether ``holder`` holds all of them. Costs what ``holders`` costs."""
        return self.holders(pages).count(holder) == len(pages)

    def assign(self, pages: Iterable[int], holder: Holder | None) -> None:
        """Say who holds pages, whoever did before: for a recovery that has found out."""
        for page in pages:
            self._holders[page] = holder

    def held_by(self, holder: Holder) -> list[int]:
        """All pages of one holder. Walks the whole ledger: for audits and messages, never for a step."""
        return [page for page, other in enumerate(self._holders) if other is holder]

    def history(self, pages: Sequence[int], limit: int = 8) -> str:
        """The last moves of those pages, oldest first, in words."""
        wanted = set(pages)
        moves = [f"{old} -> {new}" for old, new, moved in self._events if wanted.intersection(moved)]
        return ", ".join(moves[-limit:]) or "none remembered"

    def recent(self, count: int) -> list[str]:
        """The last ``count`` moves of any pages, oldest first, in words."""
        return [_in_words(*event) for event in islice(reversed(self._events), count)][::-1]


def _in_words(old: str, new: str, pages: Sequence[int]) -> str:
    more = f" and {len(pages) - SHOWN_PAGES} more" if len(pages) > SHOWN_PAGES else ""
    return f"{old} -> {new}: pages {', '.join(map(str, pages[:SHOWN_PAGES])) or 'none'}{more}"


def tag(holder: Holder | None) -> str:
    """A holder's name in messages."""
    return "the free list" if holder is None else holder.tag
