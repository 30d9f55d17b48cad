"""An artificial second pool with its own page size: private pages for all tokens of a request, or for the last ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ebbtide.messages import PoolInfo
from ebbtide.paging import pages_for
from ebbtide.scheduler.memory.accounting import (
    OwnershipError,
    PoolAccounting,
    Sweep,
    compare_with_ledger,
    mismatches,
    rebuild,
)
from ebbtide.scheduler.memory.allocator import PageAllocator
from ebbtide.scheduler.memory.cached_request import CachedRequest
from ebbtide.scheduler.memory.kv_pool import total_demand
from ebbtide.scheduler.memory.ledger import PageOwner


@dataclass
class Held:
    """The pages of one request. first: page index of ``pages[0]``. sent: page index up to which they were sent."""

    pages: list[int] = field(default_factory=list)
    first: int = 0
    sent: int = 0
    num_shared: ClassVar[int] = 0

    @property
    def end(self) -> int:
        """Page index after the last page."""
        return self.first + len(self.pages)


NOTHING = Held()


class SecondPool:
    """A ``FurtherPool``. With a window, it frees the pages before the window."""

    def __init__(self, info: PoolInfo, *, on_free: Callable[[Sequence[int]], None] | None = None) -> None:
        self.name = info.name
        self.page_size = info.page_size
        self.allocator = PageAllocator(info.num_pages, info.page_size, on_free=on_free)
        self.ledger = self.allocator.ledger
        self.quarantined: set[int] = set()
        self.held: dict[str, Held] = {}
        self.num_held = 0  # pages of all lists, updated with every change
        self._window = info.window
        self._sweep = Sweep(self.allocator)

    @property
    def capacity(self) -> int:
        return self.allocator.num_pages - len(self.quarantined)

    @property
    def available_pages(self) -> int:
        return self.allocator.available_pages

    @property
    def usable_pages(self) -> int:
        return self.allocator.available_pages

    @property
    def max_pages(self) -> float:
        return math.inf if self._window is None else pages_for(self._window - 1, self.page_size) + 1

    def pages_for(self, num_tokens: int) -> int:
        """With a window, a request never holds more pages than its last token reads, wherever the window begins."""
        whole = pages_for(num_tokens, self.page_size)
        return whole if self._window is None else min(whole, pages_for(self._window - 1, self.page_size) + 1)

    def num_pages(self, req: CachedRequest) -> int:
        return len(self._of(req).pages)

    def missing_pages(self, req: CachedRequest, num_tokens: int) -> int:
        held, first = self._of(req), self._first_needed(req)
        return max(self._last_index(first, num_tokens) - max(held.end, first) - (first - held.first), 0)

    def pages_to_restore(self, req: CachedRequest, num_tokens: int) -> int:
        return self.missing_pages(req, num_tokens)

    def freed_by(self, req: CachedRequest) -> int:
        return self.num_pages(req)

    def demand(self, running: Sequence[CachedRequest]) -> int:
        ends = [(req, req.computed + (req.num_samples if req.is_decoding else 1)) for req in running]
        return total_demand([(req, self.missing_pages(req, end)) for req, end in ends], len(running))

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        return self.allocator.available_pages >= num_pages

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        held = self.held.setdefault(req.rid, Held())
        self._drop_behind(req, held)
        count = min(self._last_index(held.first, num_tokens) - held.end, self.allocator.available_pages)
        if count > 0:
            held.pages += self.allocator.take(count, req)
            self.num_held += count
        return held.end * self.page_size

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        pages = self.held.pop(req.rid, NOTHING).pages
        self.allocator.give(pages, req)
        self.num_held -= len(pages)

    def settled(self, req: CachedRequest) -> None:
        """Do nothing: pages are freed when the next ones are allocated."""

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        return []

    def drop_owners(self, owners: Collection[int]) -> None:
        """Do nothing: no page is cached."""

    def is_intact(self, req: CachedRequest) -> bool:
        return self.quarantined.isdisjoint(self._of(req).pages)

    def take_unsent(self, req: CachedRequest) -> tuple[int, list[int]]:
        held = self.held[req.rid]
        index = max(held.sent, held.first)
        held.sent = held.end
        return index, held.pages[index - held.first :]

    def accounting(self) -> PoolAccounting:
        return PoolAccounting(self.available_pages, 0, 0, 0, self.num_held, self.capacity, len(self.quarantined))

    def owners(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        for req in running:
            yield req, self._of(req).pages

    def recount(self, running: Sequence[CachedRequest]) -> int:
        return sum(map(self.num_pages, running))

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        errors = self._sweep.check_free_list()
        for req in self._sweep.next_share(running):
            errors += mismatches(self.ledger, self._of(req).pages, req)
        return errors

    def repair(self, running: Sequence[CachedRequest]) -> None:
        self.held = {req.rid: self.held[req.rid] for req in running if req.rid in self.held}
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self.num_held = self.recount(running)

    def _of(self, req: CachedRequest) -> Held:
        return self.held.get(req.rid, NOTHING)

    def _first_needed(self, req: CachedRequest) -> int:
        """Page index of the first token that the next item of ``req`` reads, at least that of the first held page."""
        if self._window is None:
            return 0
        return max((req.computed - self._window + 1) // self.page_size, self._of(req).first, 0)

    def _last_index(self, first: int, num_tokens: int) -> int:
        """The page index up to which a request whose first page is at ``first`` gets pages for its tokens."""
        return min(pages_for(num_tokens, self.page_size), first + self.pages_for(num_tokens))

    def _drop_behind(self, req: CachedRequest, held: Held) -> None:
        count = self._first_needed(req) - held.first
        if count > 0:
            self.allocator.give(held.pages[:count], req)
            del held.pages[:count]
            held.first += count
            self.num_held -= count
