"""Page accounting of one pool: its conservation equation, the owner of every page, and pages with ownership errors.

The module does not depend on the kind of pool. For a new kind of page (sliding window, SSM state), add an
``AuditedPool`` to ``State.pools``: the checker, the dump and the metrics loop over that list.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .allocator import PageAllocator
from .cached_request import CachedRequest
from .ledger import Ledger, PageOwner, tag

T = TypeVar("T")

SWEEP_SHARE = 1 / 64  # share of all pages that is checked after every step
SWEEP_PAGES = 256  # upper bound of the pages checked per step, so that the cost does not depend on the pool size
DESCRIBED_ERRORS = 4  # number of pages that a message describes in full
LISTED_ERRORS = 64  # number of further pages that a message lists by number
LAST_MOVES = 4  # number of last moves shown if no page has an ownership error


@dataclass(frozen=True, slots=True)
class PoolAccounting:
    """The terms of the conservation equation, in pages. The first five must add up to ``total``."""

    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    total: int
    quarantined: int = 0  # pages out of service, which are not part of ``total``

    @property
    def accounted(self) -> int:
        """The sum of the owners' own counters."""
        return self.available + self.evictable + self.protected + self.session_held + self.uncached


@dataclass(frozen=True, slots=True)
class OwnershipError:
    """A page without exactly one owner, or whose owner is not the one that the ledger records."""

    page: int
    listed_by: tuple[PageOwner | None, ...]  # owners that list the page; None stands for the free list
    ledger_owner: PageOwner | None


class QuarantineOwner:
    """The owner of the pages that are out of service."""

    tag = "quarantine"
    is_locked = is_tree_node = False


class AuditedPool(Protocol):
    """Pages of one kind with their accounting.

    The parameter ``running`` of the methods is the list of running requests.
    """

    name: str
    page_size: int  # tokens
    ledger: Ledger
    quarantined: set[int]  # page numbers out of service

    def accounting(self) -> PoolAccounting:
        """Returns the terms, each as its owner counts it. The cost is independent of the pool size."""

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """Returns the term ``uncached``, recounted from the page lists of the owners."""

    def owners(self, running: Iterable[CachedRequest]) -> Iterable[tuple[PageOwner, Sequence[int]]]:
        """Yields every owner of pages except the free list, with the pages in its own list."""

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        """Returns all ownership errors. The cost is proportional to the pool size."""

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        """Returns the ownership errors in the next part of all pages, in rotation. Successive calls cover the pool."""

    def repair(self, running: Sequence[CachedRequest]) -> None:
        """Rebuild free list, ledger and counters from the owners' lists. No request may own a page in error."""


def compare_with_ledger(
    allocator: PageAllocator, owners: Iterable[tuple[PageOwner, Sequence[int]]], out_of_service: Collection[int] = ()
) -> list[OwnershipError]:
    """Return an error for every page that is not listed by exactly the owner that the ledger records.

    The cost is proportional to the pool size.
    """
    listed: defaultdict[int, tuple[PageOwner | None, ...]] = defaultdict(tuple)
    for page in allocator.free_pages():
        listed[page] += (None,)
    for owner, pages in owners:
        for page in pages:
            listed[page] += (owner,)
    errors = []
    for page, ledger_owner in enumerate(allocator.ledger.owners_of(range(allocator.num_pages))):
        listed_by = listed[page]
        if page in out_of_service:
            wrong = bool(listed_by)
        else:
            wrong = len(listed_by) != 1 or listed_by[0] is not ledger_owner
        if wrong:
            errors.append(OwnershipError(page, listed_by, ledger_owner))
    return errors


def owners_missing_pages(errors: Iterable[OwnershipError]) -> set[int]:
    """Return the ``id()`` of every owner that does not list a page that the ledger assigns to it."""
    return {id(error.ledger_owner) for error in errors if error.ledger_owner not in error.listed_by}


def rebuild(
    allocator: PageAllocator, owners: Iterable[tuple[PageOwner, Sequence[int]]], out_of_service: Collection[int]
) -> None:
    """Rebuild free list and ledger from the owners' lists. Pages in service that no owner lists become free."""
    allocator.ledger.assign(range(allocator.num_pages), None)
    allocator.ledger.assign(out_of_service, QuarantineOwner())
    held = set(out_of_service)
    for owner, pages in owners:
        allocator.ledger.assign(pages, owner)
        held.update(pages)
    allocator.reset([page for page in range(allocator.num_pages) if page not in held])


def mismatches(ledger: Ledger, pages: Sequence[int], owner: PageOwner | None) -> list[OwnershipError]:
    """Return an error for each of ``pages`` that ``owner`` lists but the ledger assigns to another owner."""
    if ledger.all_owned_by(pages, owner):
        return []
    return [OwnershipError(page, (owner,), ledger.owner(page)) for page in pages if ledger.owner(page) is not owner]


def describe(errors: Sequence[OwnershipError], ledger: Ledger) -> str:
    """Describe the pages in error with their owners and last moves.

    If there are no errors, the text says that a counter is wrong.
    """
    if not errors:
        moves = "; ".join(ledger.recent(LAST_MOVES)) or "none recorded"
        return f"every page has exactly one owner, so a counter is wrong; last moves of any page: {moves}"
    text = "; ".join(_describe_error(error, ledger) for error in errors[:DESCRIBED_ERRORS])
    if len(errors) <= DESCRIBED_ERRORS:
        return text
    numbers = ", ".join(str(error.page) for error in errors[DESCRIBED_ERRORS:LISTED_ERRORS])
    more = " …" if len(errors) > LISTED_ERRORS else ""
    return f"{text}; {len(errors)} pages have errors in total, among them {numbers}{more}"


def _describe_error(error: OwnershipError, ledger: Ledger) -> str:
    owners = " and ".join(tag(owner) for owner in error.listed_by) or "no owner"
    return (
        f"page {error.page} is listed by {owners}, but the ledger records {tag(error.ledger_owner)}; "
        f"last moves: {ledger.history([error.page])}"
    )


class Sweep:
    """Selects the part of a pool that is checked after a step, in rotation."""

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator = allocator
        self.share = min(SWEEP_SHARE, SWEEP_PAGES / max(allocator.num_pages, 1))
        self._next_free = 0
        self._next_item = 0

    def check_free_list(self) -> list[OwnershipError]:
        """Return the ownership errors in the next part of the free list, in rotation."""
        available = self._allocator.available_pages
        count = math.ceil(available * self.share)
        start = self._next_free if self._next_free < available else 0
        self._next_free = start + count
        return mismatches(self._allocator.ledger, self._allocator.free_pages(start, start + count), None)

    def next_share(self, items: Sequence[T]) -> list[T]:
        """Return the next items to check, in rotation. ``items`` may have changed since the last call."""
        picked = []
        for _ in range(math.ceil(len(items) * self.share)):
            self._next_item = (self._next_item + 1) % len(items)
            picked.append(items[self._next_item])
        return picked
