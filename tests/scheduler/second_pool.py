"""An artificial second pool: a running request needs one private page for every ``page_size`` of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ebbtide.paging import least_pages, pages_for
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
from ebbtide.scheduler.memory.ledger import PageOwner


class SecondPool:
    """A ``KvPool`` without a prefix cache. Its page lists are kept by request id; the runner never sees them."""

    name = "second"

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.allocator = PageAllocator(num_pages, page_size)
        self.page_size = page_size
        self.ledger = self.allocator.ledger
        self.quarantined: set[int] = set()
        self.pages: dict[str, list[int]] = {}
        self.num_held = 0  # pages of all lists, updated with every change
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

    def never_fits(self, prompt_len: int, max_tokens: int) -> str:
        if least_pages(prompt_len, max_tokens, self.page_size) <= self.capacity:
            return ""
        return f"The prompt has {prompt_len} tokens and pool {self.name} holds {self.capacity * self.page_size}."

    def num_pages(self, req: CachedRequest) -> int:
        return len(self.pages.get(req.rid, ()))

    def freed_by(self, req: CachedRequest) -> int:
        return self.num_pages(req)

    def demand(self, running: Sequence[CachedRequest]) -> int:
        """As ``Pool.demand``."""
        needs = [(req, pages_for(req.computed + 1, self.page_size) - self.num_pages(req)) for req in running]
        pages = sum(max(need, 0) for req, need in needs if req.is_decoding or req.protected)
        return pages or int(bool(needs) and all(need > 0 for _, need in needs))

    def evict_from_tree_cache(self, num_pages: int) -> bool:
        return self.allocator.available_pages >= num_pages

    def allocate_up_to(self, req: CachedRequest, num_tokens: int) -> int:
        missing = pages_for(num_tokens, self.page_size) - self.num_pages(req)
        count = min(missing, self.allocator.available_pages)
        if count > 0:
            self.pages.setdefault(req.rid, []).extend(self.allocator.take(count, req))
            self.num_held += count
        return self.num_pages(req) * self.page_size

    def release_kv_cache(self, req: CachedRequest, *, is_insert: bool) -> None:
        pages = self.pages.pop(req.rid, [])
        self.allocator.give(pages, req)
        self.num_held -= len(pages)

    def accounting(self) -> PoolAccounting:
        return PoolAccounting(self.available_pages, 0, 0, 0, self.num_held, self.capacity, len(self.quarantined))

    def owners(self, running: Iterable[CachedRequest]) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        for req in running:
            yield req, self.pages.get(req.rid, [])

    def recount(self, running: Sequence[CachedRequest]) -> int:
        return sum(map(self.num_pages, running))

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        errors = self._sweep.check_free_list()
        for req in self._sweep.next_share(running):
            errors += mismatches(self.ledger, self.pages.get(req.rid, []), req)
        return errors

    def repair(self, running: Sequence[CachedRequest]) -> None:
        self.quarantined.update(error.page for error in self.find_ownership_errors(running) if error.listed_by)
        kept = {req.rid: self.pages.get(req.rid, []) for req in running}
        self.pages = {rid: pages for rid, pages in kept.items() if self.quarantined.isdisjoint(pages)}
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self.num_held = self.recount(running)
