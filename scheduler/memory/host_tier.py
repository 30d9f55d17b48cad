"""The host tier: K/V of retracted requests in host memory, so that they resume with a copy instead of a prefill.

The host tier is a separate pool with its own accounting. It decides which pages to copy, and keeps their numbers; the
runner copies the bytes as the plan specifies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ebbtide.errors import InvariantViolation
from ebbtide.messages import RunnerInfo
from ebbtide.paging import pages_for
from ebbtide.plan import PageCopies

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
    """The host copy of one waiting request's K/V."""

    req: CachedRequest
    pages: list[int]  # host pages that hold the copies of the request's pages, starting at index ``first``
    first: int
    num_tokens: int  # number of the request's tokens before the end of the copy
    is_locked: ClassVar[bool] = False
    is_tree_node: ClassVar[bool] = False

    @property
    def tag(self) -> str:
        """The copy's name in messages."""
        return f"the host copy of {self.req.tag}"


class HostTier:
    """Decides which K/V to copy to the host and back.

    count: called with a metric name and a number of tokens for every copy.
    """

    name = "host"

    def __init__(self, info: RunnerInfo, count: Callable[[str, int], None]) -> None:
        self.allocator = PageAllocator(info.num_host_pages, info.page_size)
        self.page_size = info.page_size  # tokens
        self.ledger = self.allocator.ledger
        self._recompute_token_s = info.recompute_token_s
        self._restore_token_s = info.restore_token_s
        self._count = count
        self._copies: dict[str, HostCopy] = {}  # by rid
        self._restored: list[HostCopy] = []  # copies from which the next plan restores K/V; they are freed then
        self._to_host: list[int] = []
        self._to_device: list[int] = []
        self.quarantined: set[int] = set()
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

    def offload_kv_cache(self, req: CachedRequest, first: int) -> bool:
        """Copy the computed pages of a running request, starting at index ``first``, to the host.

        Returns False and copies nothing if there is no room, or if a prefill is estimated to take less time. The next
        plan copies the pages before it writes to any page, so the device pages may be freed at once.
        """
        if any(copy.req is req for copy in self._restored):
            return False  # the next plan has yet to restore the K/V of the request's device pages
        num_tokens = min(req.computed, len(req.known) - 1)
        last = pages_for(num_tokens, self.page_size)
        if not 0 < last - first <= self.allocator.available_pages or not self._pays(num_tokens, last - first):
            return False
        copy = HostCopy(req, [], first, num_tokens)
        copy.pages = self.allocator.take(last - first, copy)
        self._held += last - first
        self._copies[req.rid] = copy
        for device, host in zip(req.pages[first:last], copy.pages, strict=True):
            self._to_host += (device, host)
        self._count("kv_offloaded_tokens_total", num_tokens - first * self.page_size)
        return True

    def price(self, num_tokens: int) -> int:
        """Return how many tokens of prefill take as long as bringing back the K/V of ``num_tokens`` tokens."""
        pages = pages_for(num_tokens, self.page_size)
        if pages > self.allocator.available_pages or not self._pays(num_tokens, pages):
            return num_tokens
        return round(num_tokens * self._restore_token_s / self._recompute_token_s)

    def restorable(self, req: CachedRequest, num_cached: int) -> int:
        """Return the number of tokens that would have K/V after ``restore``.

        num_cached: number of the request's leading pages that are in the prefix cache. Returns 0 if there is no copy,
            or if these pages end before the copy begins.
        """
        copy = self._copies.get(req.rid)
        return copy.num_tokens if copy is not None and num_cached >= copy.first else 0

    def restore(self, req: CachedRequest) -> None:
        """Copy the K/V back into the request's private pages, which must be allocated already.

        Raises InvariantViolation if the copy is incomplete.
        """
        copy = self._copies[req.rid]
        errors = mismatches(self.ledger, copy.pages, copy)
        if errors or copy.first + len(copy.pages) != pages_for(copy.num_tokens, self.page_size):
            raise InvariantViolation(
                f"{copy.tag} has {len(copy.pages)} pages, starting at page index {copy.first}, "
                f"for {copy.num_tokens} tokens; "
                f"{describe(errors, self.ledger)}"
            )
        del self._copies[req.rid]
        for index in range(max(req.num_shared, copy.first), copy.first + len(copy.pages)):
            self._to_device += (copy.pages[index - copy.first], req.pages[index])
        self._restored.append(copy)
        self._count("kv_restored_tokens_total", copy.num_tokens - req.num_shared * self.page_size)

    def discard(self, req: CachedRequest) -> None:
        """Free the copy of a request that has ended or that resumes without its copy."""
        copy = self._copies.pop(req.rid, None)
        if copy is not None:
            self._give(copy)

    def take_copies(self) -> PageCopies | None:
        """Return the page copies for the plan that is being built; None if there are none.

        Frees the host pages from which K/V is restored.
        """
        if not self._to_host and not self._to_device:
            return None
        for copy in self._restored:
            self._give(copy)
        self._restored = []
        copies = PageCopies(
            self._to_host, self._to_device
        )  # after the loop, because no copy may be lost if the loop raises InvariantViolation
        self._to_host, self._to_device = [], []
        return copies

    def _give(self, copy: HostCopy) -> None:
        self.allocator.give(copy.pages, copy)
        self._held -= len(copy.pages)

    def _pays(self, num_tokens: int, num_pages: int) -> bool:
        """Return True if restoring the pages is estimated to take less time than a prefill of all tokens."""
        return self._restore_token_s * num_pages * self.allocator.page_size < self._recompute_token_s * num_tokens
