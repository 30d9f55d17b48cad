"""Page accounting of one pool: the accounting equation, the owner of every page, and pages with ownership errors.

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

SWEEP_SHARE = 1 / 64  # share of the pages that is checked after every step
SWEEP_PAGES = 256  # maximum number of pages checked per step, so that the cost does not depend on the pool size
DESCRIBED_ERRORS = 4  # maximum number of pages described in a message
LISTED_ERRORS = 64  # maximum number of pages in a message, including those listed by number only
LAST_MOVES = 4  # number of recent moves shown if no page has an ownership error


@dataclass(frozen=True, slots=True)
class PoolAccounting:
    """The terms of the accounting equation, in pages. The first five must add up to ``total``."""

    available: int
    evictable: int
    protected: int
    session_held: int
    uncached: int
    total: int
    quarantined: int = 0  # pages that may be inconsistent; they are never used again and not part of ``total``

    @property
    def accounted(self) -> int:
        """The sum of the first five terms."""
        return self.available + self.evictable + self.protected + self.session_held + self.uncached


@dataclass(frozen=True, slots=True)
class OwnershipError:
    """A page that is not in the list of exactly one owner, or whose owner is not the one that the ledger records."""

    page: int
    listed_by: tuple[PageOwner | None, ...]  # the owners whose lists contain the page; None stands for the free list
    ledger_owner: PageOwner | None


class QuarantineOwner:
    """The owner of the quarantined pages."""

    tag = "quarantine"
    is_locked = is_tree_node = False


class AuditedPool(Protocol):
    """A pool of pages, with its accounting.

    The parameter ``running`` of the methods is the list of running requests.
    """

    name: str
    page_size: int  # tokens
    ledger: Ledger
    quarantined: set[int]  # numbers of the pages that are never used again

    def accounting(self) -> PoolAccounting:
        """Return the accounting terms, each as its owner counts it. The cost does not depend on the pool size."""

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """Return the term ``uncached``, recounted from the owners' page lists."""

    def owners(self, running: Iterable[CachedRequest]) -> Iterable[tuple[PageOwner, Sequence[int]]]:
        """Yield each owner of pages except the free list, with its page list."""

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        """Return all ownership errors. The cost is proportional to the pool size."""

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        """Check a part of the pages and return their ownership errors.

        Successive calls cover the whole pool in rotation.
        """

    def repair(self, running: Sequence[CachedRequest]) -> None:
        """Rebuild the free list, the ledger and the counters from the owners' page lists.

        No running request may have a page with an ownership error in its list.
        """


def compare_with_ledger(
    allocator: PageAllocator, owners: Iterable[tuple[PageOwner, Sequence[int]]], out_of_service: Collection[int] = ()
) -> list[OwnershipError]:
    """Return an error for each page that is not in exactly one list, that of the owner recorded by the ledger.

    A page in ``out_of_service`` must be in no list.

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
    """Return the ``id()`` of each owner whose list lacks a page that the ledger assigns to it."""
    return {id(error.ledger_owner) for error in errors if error.ledger_owner not in error.listed_by}


def rebuild(
    allocator: PageAllocator, owners: Iterable[tuple[PageOwner, Sequence[int]]], out_of_service: Collection[int]
) -> None:
    """Rebuild the free list and the ledger from the owners' lists.

    In-service pages that are in no owner's list become free.
    """
    allocator.ledger.assign(range(allocator.num_pages), None)
    allocator.ledger.assign(out_of_service, QuarantineOwner())
    held = set(out_of_service)
    for owner, pages in owners:
        allocator.ledger.assign(pages, owner)
        held.update(pages)
    allocator.reset([page for page in range(allocator.num_pages) if page not in held])


def mismatches(ledger: Ledger, pages: Sequence[int], owner: PageOwner | None) -> list[OwnershipError]:
    """Return an error for each of ``pages`` that the ledger does not assign to ``owner``."""
    if ledger.all_owned_by(pages, owner):
        return []
    return [OwnershipError(page, (owner,), ledger.owner(page)) for page in pages if ledger.owner(page) is not owner]


def describe(errors: Sequence[OwnershipError], ledger: Ledger) -> str:
    """Describe the pages with ownership errors, their owners and their last moves.

    If ``errors`` is empty, the text says that a counter is wrong.
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
        """Check a part of the free list, in rotation, and return its ownership errors."""
        available = self._allocator.available_pages
        count = math.ceil(available * self.share)
        start = self._next_free if self._next_free < available else 0
        self._next_free = start + count
        return mismatches(self._allocator.ledger, self._allocator.free_pages(start, start + count), None)

    def next_share(self, items: Sequence[T]) -> list[T]:
        """Return the items to check after this step, in rotation. ``items`` may have changed since the last call."""
        picked = []
        for _ in range(math.ceil(len(items) * self.share)):
            self._next_item = (self._next_item + 1) % len(items)
            picked.append(items[self._next_item])
        return picked
