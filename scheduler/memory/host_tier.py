"""The host tier: K/V of retracted requests in host memory, so that their return is a copy instead of a computation.

A pool of its own in the books. Knows page numbers and estimates; the bytes are moved by the runner, told by the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ebbtide.errors import InvariantViolation
from ebbtide.messages import RunnerInfo
from ebbtide.paging import pages_for
from ebbtide.plan import PageCopies

from ..request import Phase, Request
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
from .ledger import Ledger, PageOwner


@dataclass(slots=True, eq=False)
class HostCopy:
    """K/V of one waiting request: its pages from index ``first`` on, valid for the first ``num_tokens`` tokens."""

    req: Request
    pages: list[int]
    first: int
    num_tokens: int
    is_locked: ClassVar[bool] = False
    is_tree_node: ClassVar[bool] = False

    @property
    def tag(self) -> str:
        """Its name in messages."""
        return f"the host copy of {self.req.tag}"


class HostTier:
    """Keeps and restores. ``count`` is told how many tokens moved, under a metric's name."""

    name = "host"

    def __init__(self, info: RunnerInfo, count: Callable[[str, int], None]) -> None:
        self.allocator = PageAllocator(info.num_host_pages, info.page_size)
        self._recompute_token_s = info.recompute_token_s
        self._restore_token_s = info.restore_token_s
        self._count = count
        self._copies: dict[str, HostCopy] = {}
        self._restored: list[HostCopy] = []
        self._to_host: list[int] = []
        self._to_device: list[int] = []
        self.quarantined: set[int] = set()  # pages out of service
        self._held = 0  # pages of all copies, counted as it changes
        self._sweep = Sweep(self.allocator)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.allocator.page_size

    @property
    def ledger(self) -> Ledger:
        """Who holds which host page."""
        return self.allocator.ledger

    def accounting(self) -> PoolAccounting:
        """Free pages, and those that hold a copy or are still read by the next plan."""
        out = len(self.quarantined)
        return PoolAccounting(self.allocator.available_pages, 0, 0, 0, self._held, self.allocator.num_pages - out, out)

    def copies(self) -> list[HostCopy]:
        """All there are: of requests that wait, and those that the next plan reads."""
        return [*self._copies.values(), *self._restored]

    def owners(self, running: Iterable[Request]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """Copies of requests that wait, and copies that the next plan reads. One that outlived its request is none."""
        for copy in self._copies.values():
            if copy.req.phase is Phase.WAITING:
                yield copy, copy.pages
        for copy in self._restored:
            yield copy, copy.pages

    def recount(self, running: Sequence[Request]) -> int:
        """See ``AuditedPool``."""
        return sum(len(copy.pages) for copy in self.copies())

    def find_ownership_errors(self, running: Iterable[Request]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[Request]) -> list[OwnershipError]:
        """See ``AuditedPool``."""
        errors = self._sweep.check_free_list()
        for copy in self._sweep.next_share(self.copies()):
            errors += mismatches(self.ledger, copy.pages, copy)
        return errors

    def repair(self, running: Sequence[Request]) -> None:
        """See ``AuditedPool``. Copies on a page in doubt are dropped: their requests are computed instead."""
        errors = self.find_ownership_errors(running)
        self.quarantined.update(error.page for error in errors)
        torn = owners_missing_pages(errors)
        whole = [c for c in self.copies() if id(c) not in torn and self.quarantined.isdisjoint(c.pages)]
        self._restored = [copy for copy in whole if copy in self._restored]
        self._copies = {copy.req.rid: copy for copy in whole if copy.req.phase is Phase.WAITING}
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self._held = self.recount(running)

    def offload_kv_cache(self, req: Request, first: int) -> bool:
        """Copy the computed pages of a running request from index ``first`` on; whether there was room and it pays.

        The copy happens in the next plan before anything is written, so the device pages may be given back at once.
        """
        if any(copy.req is req for copy in self._restored):
            return False  # its pages get their K/V only in the plan that is being made
        num_tokens = min(req.computed, len(req.known) - 1)
        last = pages_for(num_tokens, req.page_size)
        if not 0 < last - first <= self.allocator.available_pages or not self._pays(num_tokens, last - first):
            return False
        copy = HostCopy(req, [], first, num_tokens)
        copy.pages = self.allocator.take(last - first, copy)
        self._held += last - first
        self._copies[req.rid] = copy
        for device, host in zip(req.pages[first:last], copy.pages, strict=True):
            self._to_host += (device, host)
        self._count("kv_offloaded_tokens_total", num_tokens - first * req.page_size)
        return True

    def restorable(self, req: Request, num_cached: int) -> int:
        """Tokens that ``restore`` would give when the cache holds the first ``num_cached`` pages; 0 for none."""
        copy = self._copies.get(req.rid)
        return copy.num_tokens if copy is not None and num_cached >= copy.first else 0

    def restore(self, req: Request) -> None:
        """Copy back into the request's own pages, which must cover the copy's tokens, and forget the copy.

        Raises InvariantViolation when the copy is not whole.
        """
        copy = self._copies[req.rid]
        errors = mismatches(self.ledger, copy.pages, copy)
        if errors or copy.first + len(copy.pages) != pages_for(copy.num_tokens, self.page_size):
            raise InvariantViolation(
                f"{copy.tag} has {len(copy.pages)} pages from {copy.first} on for {copy.num_tokens} tokens; "
                f"{describe(errors, self.ledger)}"
            )
        del self._copies[req.rid]
        for index in range(max(req.num_shared, copy.first), copy.first + len(copy.pages)):
            self._to_device += (copy.pages[index - copy.first], req.pages[index])
        self._restored.append(copy)  # its pages are read by the next plan and free after that
        self._count("kv_restored_tokens_total", copy.num_tokens - req.num_shared * req.page_size)

    def discard(self, req: Request) -> None:
        """The copy is of no use: its request ended, or starts from a shorter prefix."""
        copy = self._copies.pop(req.rid, None)
        if copy is not None:
            self._give(copy)

    def take_copies(self) -> PageCopies | None:
        """What the plan that is being made must move; host pages that were read by it are free for the next one."""
        if not self._to_host and not self._to_device:
            return None
        for copy in self._restored:
            self._give(copy)
        self._restored = []
        copies = PageCopies(self._to_host, self._to_device)  # not before: a violation must not lose a copy
        self._to_host, self._to_device = [], []
        return copies

    def _give(self, copy: HostCopy) -> None:
        self.allocator.give(copy.pages, copy)
        self._held -= len(copy.pages)

    def _pays(self, num_tokens: int, num_pages: int) -> bool:
        """Estimate: copying whole pages to the host and back against one prefill of all the tokens."""
        return self._restore_token_s * num_pages * self.allocator.page_size < self._recompute_token_s * num_tokens
