"""Accounting bugs to seed: pages, locks and rows that are lost, freed twice, owned twice, or not counted.

Each replaces one function by a version with a typical mistake. ``test_mutations`` says which check must find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from ebbtide.plan import PlanItem
from ebbtide.scheduler.batching.admitter import Admitter
from ebbtide.scheduler.batching.plan_items import PlanItems
from ebbtide.scheduler.lifecycle import Lifecycle, ReleaseReason
from ebbtide.scheduler.memory.accounting import QuarantineOwner
from ebbtide.scheduler.memory.allocator import PageAllocator
from ebbtide.scheduler.memory.host_pool import HostCopy, HostPool
from ebbtide.scheduler.memory.ledger import Ledger, PageOwner
from ebbtide.scheduler.memory.node import Node
from ebbtide.scheduler.memory.pool import Pool
from ebbtide.scheduler.memory.prefix_cache import MatchResult
from ebbtide.scheduler.memory.radix_cache import RadixCache
from ebbtide.scheduler.request import Request
from ebbtide.scheduler.request_memory import Memory

from .witnesses import Bug, Witness

Patch = pytest.MonkeyPatch


def skip_lock(patch: Patch) -> None:
    patch.setattr(RadixCache, "_lock_path", lambda self, node: None)


def lock_only_the_leaf(patch: Patch) -> None:
    patch.setattr(RadixCache, "_lock_path", lambda self, node: self._lock(node))


def missing_unlock(patch: Patch) -> None:
    def release(self: RadixCache, req: Request) -> None:
        req.node = None

    patch.setattr(RadixCache, "release", release)


def lock_without_counter_update(patch: Patch) -> None:
    """A locked page is still counted as evictable."""

    def lock(self: RadixCache, node: Node) -> None:
        node.locks += 1

    patch.setattr(RadixCache, "_lock", lock)


def unlocked_twice(patch: Patch) -> None:
    original = RadixCache.release

    def release(self: RadixCache, req: Request) -> None:
        node = req.node
        original(self, req)
        if isinstance(node, Node) and node.locks:
            req.node = node
            original(self, req)

    patch.setattr(RadixCache, "release", release)


def evict_locked_pages(patch: Patch) -> None:
    def evict(self: RadixCache, num_pages: int) -> int:
        leaf = next((node for node in self.walk() if not node.children), None)
        return self._trim(leaf, num_pages) if leaf else 0

    patch.setattr(RadixCache, "evict", evict)


def eviction_without_counter_update(patch: Patch) -> None:
    original = RadixCache._trim

    def trim(self: RadixCache, leaf: Node, num_pages: int) -> int:
        before = self.evictable_pages
        count = original(self, leaf, num_pages)
        self.evictable_pages = before
        return count

    patch.setattr(RadixCache, "_trim", trim)


def leaf_dropped_without_freeing_its_pages(patch: Patch) -> None:
    """Eviction removes a leaf from the tree without freeing its pages."""
    original = RadixCache._trim

    def trim(self: RadixCache, leaf: Node, num_pages: int) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PageAllocator, "give", lambda self, pages, owner: None)
            return original(self, leaf, num_pages)

    patch.setattr(RadixCache, "_trim", trim)


def double_free(patch: Patch) -> None:
    original = PageAllocator.give

    def give(self: PageAllocator, pages: list[int], owner: Any) -> None:
        original(self, pages, owner)
        self._free.extend(pages[:1])

    patch.setattr(PageAllocator, "give", give)


def lost_page(patch: Patch) -> None:
    original = PageAllocator.give

    def give(self: PageAllocator, pages: list[int], owner: Any) -> None:
        original(self, pages, owner)
        if len(pages) > 2:
            self._free.pop()

    patch.setattr(PageAllocator, "give", give)


def last_page_is_not_freed(patch: Patch) -> None:
    """The last, partly filled page of a finished request is not freed."""
    original = PageAllocator.give

    def release(self: Pool, req: Request, *, is_insert: bool) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PageAllocator, "give", lambda self, pages, owner: original(self, pages[:-1], owner))
            whole(self, req, is_insert=is_insert)

    whole = Pool.release_kv_cache
    patch.setattr(Pool, "release_kv_cache", release)


def taken_page_stays_in_the_free_list(patch: Patch) -> None:
    original = PageAllocator.take

    def take(self: PageAllocator, count: int, owner: PageOwner) -> list[int]:
        pages = original(self, count, owner)
        self._free = pages[:1] + self._free
        return pages

    patch.setattr(PageAllocator, "take", take)


def page_taken_and_dropped(patch: Patch) -> None:
    """One page too many is allocated if there is one, and no owner lists it."""
    original = Pool.allocate

    def allocate(self: Pool, req: Request, num_pages: int) -> None:
        original(self, req, num_pages)
        if self.token_to_kv_pool_allocator.available_pages > 3:
            self.token_to_kv_pool_allocator.take(1, req)
            self.uncached += 1

    patch.setattr(Pool, "allocate", allocate)


def page_taken_without_counter_update(patch: Patch) -> None:
    def allocate(self: Pool, req: Request, num_pages: int) -> None:
        req.pages += self.token_to_kv_pool_allocator.take(num_pages, req)

    patch.setattr(Pool, "allocate", allocate)


def quarantined_page_stays_in_the_free_list(patch: Patch) -> None:
    """A quarantined page stays in the free list."""
    original = Pool.publish

    def publish(self: Pool, req: Request, num_tokens: int) -> None:
        original(self, req, num_tokens)
        free = self.token_to_kv_pool_allocator.free_pages()
        if free and not self.quarantined:
            self.quarantined.add(free[-1])
            self.ledger.assign(free[-1:], QuarantineOwner())

    patch.setattr(Pool, "publish", publish)


def early_publish(patch: Patch) -> None:
    """The whole prompt is published when its first chunk is planned."""
    original = Admitter._start

    def start(self: Admitter, req: Request, *args: object) -> PlanItem | None:
        item = original(self, req, *args)  # type: ignore[arg-type]
        pool = self.memory.pool
        pool.publish(req, min(pool.allocate_up_to(req, req.prompt_len), req.prompt_len))
        return item

    patch.setattr(Admitter, "_start", start)


def publish_half_a_page(patch: Patch) -> None:
    original = Pool.publish

    def publish(self: Pool, req: Request, num_tokens: int) -> None:
        original(self, req, min(-(-num_tokens // self.page_size), len(req.pages)) * self.page_size)

    patch.setattr(Pool, "publish", publish)


def publish_without_counter_update(patch: Patch) -> None:
    def publish(self: Pool, req: Request, num_tokens: int) -> None:
        if num_tokens // self.page_size > req.num_shared:
            self.tree_cache.publish(req, num_tokens // self.page_size)

    patch.setattr(Pool, "publish", publish)


def wrong_page_in_the_plan(patch: Patch) -> None:
    """The plan writes another page to the page table than the one that the request lists."""
    original = PlanItems._item

    def item(self: PlanItems, req: Request, *args: object) -> PlanItem:
        made = original(self, req, *args)  # type: ignore[arg-type]
        return replace(made, pages=[page ^ 1 for page in made.pages])

    patch.setattr(PlanItems, "_item", item)


def split_off_by_one(patch: Patch) -> None:
    original = RadixCache._split

    def split(self: RadixCache, node: Node, num_pages: int) -> Node:
        upper = original(self, node, num_pages)
        upper.pages[-1], node.pages[0] = node.pages[0], upper.pages[-1]
        return upper

    patch.setattr(RadixCache, "_split", split)


def ledger_not_updated(patch: Patch) -> None:
    """The tree takes over pages without an entry in the ledger."""
    original = Ledger.move

    def move(self: Ledger, pages: Sequence[int], old: PageOwner | None, new: PageOwner | None) -> None:
        if not isinstance(new, Node):
            original(self, pages, old, new)

    patch.setattr(Ledger, "move", move)


def own_copies_not_freed(patch: Patch) -> None:
    """After a switch to cached pages the request's own pages are not freed."""

    def switch(self: RadixCache, node: Node, req: Request) -> None:
        end = req.num_shared + len(node.pages)
        req.pages[req.num_shared : end] = node.pages
        req.sent_pages = min(req.sent_pages, req.num_shared)
        req.num_shared = end

    patch.setattr(RadixCache, "_use_cached_pages", switch)


def own_copies_freed_and_still_used(patch: Patch) -> None:
    """The request's own pages are freed, but it continues to use them instead of the cached ones."""
    original = RadixCache._use_cached_pages

    def switch(self: RadixCache, node: Node, req: Request) -> None:
        own = list(req.pages)
        original(self, node, req)
        req.pages = own

    patch.setattr(RadixCache, "_use_cached_pages", switch)


def shared_pages_listed_as_own(patch: Patch) -> None:
    """Shared pages of the tree are listed as the request's own pages."""
    original = RadixCache.attach

    def attach(self: RadixCache, req: Request, match: MatchResult) -> None:
        original(self, req, match)
        req.num_shared = 0

    patch.setattr(RadixCache, "attach", attach)


def shared_pages_freed_by_the_request(patch: Patch) -> None:
    """A finished request frees its shared pages as well."""

    def release(self: Pool, req: Request, *, is_insert: bool) -> None:
        if is_insert:
            self.publish(req, min(req.num_confirmed, len(req.known)))
        self.tree_cache.release(req)
        self.token_to_kv_pool_allocator.give(req.pages, req)
        self.uncached -= req.num_private
        req.pages, req.num_shared = [], 0

    patch.setattr(Pool, "release_kv_cache", release)


def abort_frees_nothing(patch: Patch) -> None:
    original = Memory.release_req

    def release(self: Memory, req: Request, why: ReleaseReason) -> bool:
        return why is not ReleaseReason.ABORT and original(self, req, why)

    patch.setattr(Memory, "release_req", release)


def lost_row(patch: Patch) -> None:
    original = Lifecycle.finish

    def finish(self: Lifecycle, req: Request, *args: object, **kwargs: object) -> None:
        original(self, req, *args, **kwargs)  # type: ignore[arg-type]
        if len(self.free_rows) > 2:
            self.free_rows.pop()

    patch.setattr(Lifecycle, "finish", finish)


def row_freed_twice(patch: Patch) -> None:
    original = Lifecycle.finish

    def finish(self: Lifecycle, req: Request, *args: object, **kwargs: object) -> None:
        row = req.row
        original(self, req, *args, **kwargs)  # type: ignore[arg-type]
        if row is not None:
            self.free_rows.append(row)

    patch.setattr(Lifecycle, "finish", finish)


def host_copy_never_freed(patch: Patch) -> None:
    """The host copy of a finished request is dropped without freeing its pages."""

    def discard(self: HostPool, req: Request) -> None:
        self._copies.pop(req.rid, None)

    patch.setattr(HostPool, "discard", discard)


def host_copy_freed_without_counter_update(patch: Patch) -> None:
    def give(self: HostPool, copy: HostCopy) -> None:
        self.allocator.give(copy.pages, copy)

    patch.setattr(HostPool, "_give", give)


def host_copy_freed_and_kept(patch: Patch) -> None:
    """A host page of a restored copy is freed at once, and again after the plan that reads it."""
    original = HostPool.restore

    def restore(self: HostPool, req: Request, first: int, device_pages: Sequence[int]) -> None:
        original(self, req, first, device_pages)
        self.allocator.give(self._restored[-1].pages[:1], self._restored[-1])

    patch.setattr(HostPool, "restore", restore)


ACCOUNTING: dict[Bug, Witness] = {
    skip_lock: Witness.PLAN_AUDIT,
    lock_only_the_leaf: Witness.PLAN_AUDIT,
    missing_unlock: Witness.TREE,
    lock_without_counter_update: Witness.EQUATION,
    unlocked_twice: Witness.PLAN_AUDIT,
    evict_locked_pages: Witness.LEDGER_AUDIT,
    eviction_without_counter_update: Witness.EQUATION,
    leaf_dropped_without_freeing_its_pages: Witness.EQUATION,
    double_free: Witness.EQUATION,
    lost_page: Witness.EQUATION,
    last_page_is_not_freed: Witness.EQUATION,
    taken_page_stays_in_the_free_list: Witness.EQUATION,
    page_taken_and_dropped: Witness.EQUATION,
    page_taken_without_counter_update: Witness.EQUATION,
    quarantined_page_stays_in_the_free_list: Witness.EQUATION,
    early_publish: Witness.PLAN_AUDIT,
    publish_half_a_page: Witness.PLAN_AUDIT,
    publish_without_counter_update: Witness.EQUATION,
    wrong_page_in_the_plan: Witness.PLAN_AUDIT,
    split_off_by_one: Witness.SWEEP,
    ledger_not_updated: Witness.SWEEP,
    own_copies_not_freed: Witness.EQUATION,
    own_copies_freed_and_still_used: Witness.PLAN_AUDIT,
    shared_pages_listed_as_own: Witness.PLAN_AUDIT,
    shared_pages_freed_by_the_request: Witness.LEDGER_MOVE,
    abort_frees_nothing: Witness.EQUATION,
    lost_row: Witness.ROWS,
    row_freed_twice: Witness.ROWS,
    host_copy_never_freed: Witness.EQUATION,
    host_copy_freed_without_counter_update: Witness.EQUATION,
    host_copy_freed_and_kept: Witness.LEDGER_MOVE,
}
