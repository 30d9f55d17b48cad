"""The host pages for one device pool, with their accounting: which copies use them, and which copies come next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ebbtide.errors import InvariantViolation

from .accounting import (
    OwnershipError,
    PoolAccounting,
    Sweep,
    compare_with_ledger,
    describe,
    mismatches,
    owners_missing_pages,
    rebuild,
)
from .allocator import PageAllocator
from .cached_request import CachedRequest
from .ledger import PageOwner


@dataclass(slots=True, eq=False)
class HostCopy:
    """The host copy of one waiting request's K/V in one pool."""

    req: CachedRequest
    pages: list[int]  # host pages that hold the copies of the request's pages, starting at index ``first``
    first: int
    end: int  # page index after the last page that was copied
    is_locked: ClassVar[bool] = False
    is_tree_node: ClassVar[bool] = False

    @property
    def tag(self) -> str:
        """The copy's name in messages."""
        return f"the host copy of {self.req.tag}"


class HostPool:
    """The host pages for one device pool. An ``AuditedPool``."""

    def __init__(self, name: str, num_pages: int, page_size: int) -> None:
        self.name = name
        self.page_size = page_size  # tokens
        self.allocator = PageAllocator(num_pages, page_size)
        self.ledger = self.allocator.ledger
        self.quarantined: set[int] = set()
        self._copies: dict[str, HostCopy] = {}  # by rid
        self._restored: list[HostCopy] = []  # copies from which the next plan restores K/V; they are freed then
        self._to_host: list[int] = []
        self._to_device: list[int] = []
        self._held = 0  # number of pages of all copies, updated with every change
        self._sweep = Sweep(self.allocator)

    def accounting(self) -> PoolAccounting:
        """See ``AuditedPool``. The term ``uncached`` counts the pages of all copies."""
        out = len(self.quarantined)
        return PoolAccounting(self.allocator.available_pages, 0, 0, 0, self._held, self.allocator.num_pages - out, out)

    def copies(self) -> list[HostCopy]:
        """Return all copies: those of waiting requests and those from which the next plan restores K/V."""
        return [*self._copies.values(), *self._restored]

    def owners(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedPool``.

        The owners are the copies of waiting requests and those from which the next plan restores K/V. Any other copy
        would be a leak.
        """
        for copy in self._copies.values():
            if copy.req.is_waiting:
                yield copy, copy.pages
        for copy in self._restored:
            yield copy, copy.pages

    def recount(self, running: Sequence[CachedRequest]) -> int:
        """See ``AuditedPool``."""
        return sum(len(copy.pages) for copy in self.copies())

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        errors = self._sweep.check_free_list()
        for copy in self._sweep.next_share(self.copies()):
            errors += mismatches(self.ledger, copy.pages, copy)
        return errors

    def repair(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedPool``. Drops copies with ownership errors, so that their requests are recomputed."""
        errors = self.find_ownership_errors(running)
        self.quarantined.update(error.page for error in errors)
        incomplete = owners_missing_pages(errors)
        valid = [c for c in self.copies() if id(c) not in incomplete and self.quarantined.isdisjoint(c.pages)]
        self._restored = [copy for copy in valid if copy in self._restored]
        self._copies = {copy.req.rid: copy for copy in valid if copy.req.is_waiting}
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self._held = self.recount(running)

    def copy_of(self, req: CachedRequest) -> HostCopy | None:
        """Return the copy of a waiting request; None if there is none."""
        return self._copies.get(req.rid)

    def restores(self, req: CachedRequest) -> bool:
        """True if the next plan has yet to restore the K/V of the request's device pages."""
        return any(copy.req is req for copy in self._restored)

    def save(self, req: CachedRequest, first: int, device_pages: Sequence[int]) -> None:
        """Copy device pages, which start at page index ``first``, to the host with the next plan."""
        copy = HostCopy(req, [], first, first + len(device_pages))
        copy.pages = self.allocator.take(len(device_pages), copy)
        self._held += len(copy.pages)
        self._copies[req.rid] = copy
        for device, host in zip(device_pages, copy.pages, strict=True):
            self._to_host += (device, host)

    def restore(self, req: CachedRequest, first: int, device_pages: Sequence[int]) -> None:
        """Copy K/V back into device pages, which start at page index ``first``, with the next plan.

        Raises InvariantViolation if the copy is incomplete.
        """
        copy = self._copies[req.rid]
        errors = mismatches(self.ledger, copy.pages, copy)
        if errors or copy.first + len(copy.pages) != copy.end or not copy.first <= first <= copy.end:
            raise InvariantViolation(
                f"pool {self.name}: {copy.tag} has {len(copy.pages)} pages, starting at page index {copy.first}, for "
                f"the pages from {first} to {copy.end} (exclusive); {describe(errors, self.ledger)}"
            )
        del self._copies[req.rid]
        for host, device in zip(copy.pages[first - copy.first :], device_pages, strict=True):
            self._to_device += (host, device)
        self._restored.append(copy)

    def discard(self, req: CachedRequest) -> None:
        """Free the copy of a request, if there is one."""
        copy = self._copies.pop(req.rid, None)
        if copy is not None:
            self._give(copy)

    def take_copies(self) -> tuple[list[int], list[int]]:
        """Return the copies to the host and to the device for the next plan, as in ``PageCopies``.

        Frees the host pages from which K/V is restored.
        """
        for copy in self._restored:
            self._give(copy)
        self._restored = []
        taken = self._to_host, self._to_device  # after the loop, which can raise InvariantViolation: no copy is lost
        self._to_host, self._to_device = [], []
        return taken

    def _give(self, copy: HostCopy) -> None:
        self.allocator.give(copy.pages, copy)
        self._held -= len(copy.pages)
