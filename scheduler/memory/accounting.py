"""The books of a pool: its terms, who lists which page, and which pages are in doubt.

Knows pages and holders; knows no kind of pool. Pages of a new kind (a sliding window, SSM state) are one more
``BookedPool`` in ``State.pools``, where checker, dump and metrics find it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from .allocator import PageAllocator
from .ledger import Holder, Ledger, tag

if TYPE_CHECKING:
    from ..request import Request

T = TypeVar("T")

SWEEP_SHARE = 1 / 64  # of all pages that are looked at after a step,
SWEEP_PAGES = 256  # and how many that is at most: no step may cost what the pool is large
NAMED_DOUBTS = 4  # that a message spells out
NUMBERED_DOUBTS = 64  # whose page numbers it gives
LAST_MOVES = 4  # of any pages, when no page is in doubt


@dataclass(frozen=True, slots=True)
class Books:
    """The terms of the conservation law, in pages: the first five add up to ``total``. quarantined: out of service."""

    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    total: int
    quarantined: int = 0

    @property
    def accounted(self) -> int:
        """What the holders' own counts add up to."""
        return self.available + self.evictable + self.protected + self.session_held + self.uncached


@dataclass(frozen=True, slots=True)
class Doubt:
    """A page that has not exactly one holder on whom all agree.

    listed_by: those in whose own structure it is (None: the free list). said: whom the ledger names.
    """

    page: int
    listed_by: tuple[Holder | None, ...]
    said: Holder | None


class OutOfService:
    """The holder of pages that nobody may use again."""

    tag = "quarantine"


class BookedPool(Protocol):
    """Pages of one kind with their books. ``running``: the requests that run. quarantined: pages out of service."""

    name: str
    quarantined: set[int]

    @property
    def page_size(self) -> int:
        """Tokens per page."""

    @property
    def ledger(self) -> Ledger:
        """The second witness."""

    def books(self) -> Books:
        """The terms as each holder counts them; the same cost for every pool."""

    def recount(self, running: Sequence[Request]) -> int:
        """``uncached`` as the lists of its holders say."""

    def doubts(self, running: Iterable[Request]) -> list[Doubt]:
        """Every page that is in doubt. Costs the whole pool."""

    def sweep(self, running: Sequence[Request]) -> list[Doubt]:
        """The same for a share of all pages, in turn: all have been seen after 1 / ``Sweep.share`` calls."""

    def repair(self, running: Sequence[Request]) -> None:
        """Derive free list, ledger and counts from what the holders list. ``running`` stand on no page in doubt."""


def find_doubts(
    allocator: PageAllocator, holders: Iterable[tuple[Holder, Sequence[int]]], out_of_service: Collection[int] = ()
) -> list[Doubt]:
    """All pages less those that one holder lists and the ledger gives to the same. Costs the whole pool."""
    listed: defaultdict[int, tuple[Holder | None, ...]] = defaultdict(tuple)
    for page in allocator.free_pages():
        listed[page] += (None,)
    for holder, pages in holders:
        for page in pages:
            listed[page] += (holder,)
    doubts = []
    for page, said in enumerate(allocator.ledger.holders(range(allocator.num_pages))):
        who = listed[page]
        if page in out_of_service:
            wrong = bool(who)
        else:
            wrong = len(who) != 1 or who[0] is not said
        if wrong:
            doubts.append(Doubt(page, who, said))
    return doubts


def losers(doubts: Iterable[Doubt]) -> set[int]:
    """Identities of those who, by the ledger, hold a page that they do not list: their lists have a hole."""
    return {id(doubt.said) for doubt in doubts if doubt.said not in doubt.listed_by}


def rebuild(
    allocator: PageAllocator, holders: Iterable[tuple[Holder, Sequence[int]]], out_of_service: Collection[int]
) -> None:
    """Make free list and ledger say what ``holders`` list: pages of nobody are free unless they are out of service."""
    allocator.ledger.assign(range(allocator.num_pages), None)
    allocator.ledger.assign(out_of_service, OutOfService())
    held = set(out_of_service)
    for holder, pages in holders:
        allocator.ledger.assign(pages, holder)
        held.update(pages)
    allocator.reset([page for page in range(allocator.num_pages) if page not in held])


def denied(ledger: Ledger, pages: Sequence[int], holder: Holder | None) -> list[Doubt]:
    """Those of ``pages``, which ``holder`` lists, that the ledger gives to another."""
    if ledger.agrees(pages, holder):
        return []
    return [Doubt(page, (holder,), ledger.holder(page)) for page in pages if ledger.holder(page) is not holder]


def in_words(doubts: Sequence[Doubt], ledger: Ledger) -> str:
    """Which pages, whose they are in whose eyes, and their last moves; when there are none, that a count is wrong."""
    if not doubts:
        moves = "; ".join(ledger.recent(LAST_MOVES)) or "none remembered"
        return f"every page has one holder, so a count is wrong; the last moves: {moves}"
    words = "; ".join(_doubt_in_words(doubt, ledger) for doubt in doubts[:NAMED_DOUBTS])
    if len(doubts) <= NAMED_DOUBTS:
        return words
    numbers = ", ".join(str(doubt.page) for doubt in doubts[NAMED_DOUBTS:NUMBERED_DOUBTS])
    return f"{words}; {len(doubts)} pages are in doubt, also {numbers}{' …' if len(doubts) > NUMBERED_DOUBTS else ''}"


def _doubt_in_words(doubt: Doubt, ledger: Ledger) -> str:
    holders = " and ".join(tag(holder) for holder in doubt.listed_by) or "nobody"
    agreement = "and" if doubt.said in doubt.listed_by else "but"
    return (
        f"page {doubt.page} is held by {holders}, {agreement} the ledger says {tag(doubt.said)}; "
        f"its last moves: {ledger.history([doubt.page])}"
    )


class Sweep:
    """Looks at a share of a pool after each step, in turn: at the free list by itself, at the rest as it is told."""

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator = allocator
        self.share = min(SWEEP_SHARE, SWEEP_PAGES / max(allocator.num_pages, 1))
        self._next_free = 0
        self._next_item = 0

    def free_list(self) -> list[Doubt]:
        """The next share of the free list."""
        available = self._allocator.available_pages
        count = math.ceil(available * self.share)
        start = self._next_free if self._next_free < available else 0
        self._next_free = start + count
        return denied(self._allocator.ledger, self._allocator.free_pages(start, start + count), None)

    def turn(self, items: Sequence[T]) -> list[T]:
        """The next share of ``items``, which may have changed since the last time."""
        picked = []
        for _ in range(math.ceil(len(items) * self.share)):
            self._next_item = (self._next_item + 1) % len(items)
            picked.append(items[self._next_item])
        return picked
