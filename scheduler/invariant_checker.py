"""The memory books: what each holder counts must add up to the pool, and the ledger must say the same.

Reads the holders' own counters and structures; changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ebbtide.errors import InvariantViolation
from ebbtide.plan import PlanItem

from .memory.ledger import Holder, tag
from .memory.node import Node
from .memory.radix_cache import RadixCache
from .request import Request
from .state import State

SWEEP_SHARE = 1 / 64


class InvariantChecker:
    """Raises InvariantViolation with the pages and their holders when the books do not balance."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._next_free = 0
        self._next_running = 0

    def audit_plan(self, items: Sequence[PlanItem], requests: Sequence[Request]) -> None:
        """Before a plan runs: every page that it writes to is its request's own, and every page that it is told is its
        request's own or locked in the tree."""
        size = self._state.pool.page_size
        ledger = self._state.pool.token_to_kv_pool_allocator.ledger
        first = [req.pages[item.start // size] for item, req in zip(items, requests, strict=True)]
        if ledger.holders(first) != requests:  # compares identities: some 100 ns a row, all told
            for page, req in zip(first, requests, strict=True):
                self._same_holder(page, req)
        for item, req in zip(items, requests, strict=True):
            if item.pages:
                self._agrees(req.pages[max(req.num_shared, item.page_index) :], req)
                for page in req.pages[item.page_index : req.num_shared]:
                    self._is_locked(page, req)

    def self_check_during_busy(self) -> None:
        """The conservation law, and one page in 64 against the ledger, in turn. Costs the same for every tree."""
        self._check_pool_invariant()
        self._sweep()

    def on_idle(self) -> None:
        """Everything, when nothing runs: every page, every row, the tree and its counters."""
        self._check_all_pools()
        self._check_req_pool()
        self._check_tree_cache()

    def _check_pool_invariant(self) -> None:
        books = self._state.pool.books()
        held = sum([len(req.pages) - req.num_shared for req in self._state.running])
        if held != books.uncached:
            raise InvariantViolation(
                f"running requests hold {held} pages of their own, but {books.uncached} are booked"
            )
        total_accounted = books.available + books.evictable + books.protected + books.session_held + held
        leak = total_accounted != books.total
        if leak:
            raise InvariantViolation(f"the pool of {books.total} pages accounts for {total_accounted}: {books}")

    def _sweep(self) -> None:
        """The next share of the free list, the running requests and the tree."""
        pool = self._state.pool
        count = math.ceil(pool.token_to_kv_pool_allocator.available_pages * SWEEP_SHARE)
        if self._next_free >= pool.token_to_kv_pool_allocator.available_pages:
            self._next_free = 0
        self._agrees(pool.token_to_kv_pool_allocator.free_pages(self._next_free, self._next_free + count), None)
        self._next_free += count
        running = self._state.running
        for _ in range(math.ceil(len(running) * SWEEP_SHARE)):
            self._next_running = (self._next_running + 1) % len(running)
            req = running[self._next_running]
            self._agrees(req.pages[req.num_shared :], req)
        if isinstance(pool.tree_cache, RadixCache):
            for node in pool.tree_cache.next_nodes(SWEEP_SHARE):
                self._agrees(node.pages, node)

    def _is_locked(self, page: int, req: Request) -> None:
        holder = self._state.pool.token_to_kv_pool_allocator.ledger.holder(page)
        if not (isinstance(holder, Node) and holder.locks):
            raise InvariantViolation(
                f"{req.tag} is about to read page {page}, which is held by {tag(holder)}, unlocked"
            )

    def _agrees(self, pages: Sequence[int], holder: Holder | None) -> None:
        ledger = self._state.pool.token_to_kv_pool_allocator.ledger
        if not ledger.agrees(pages, holder):
            for page in pages:
                self._same_holder(page, holder)

    def _check_all_pools(self) -> None:
        self._check_pool_invariant()
        self._check_full_pool()
        self._check_host_pool()

    def _check_full_pool(self) -> None:
        """Every page is in exactly one holder's own structure, and the ledger names that holder."""
        pool = self._state.pool
        claims = Counter(pool.token_to_kv_pool_allocator.free_pages())
        for page in pool.token_to_kv_pool_allocator.free_pages():
            self._same_holder(page, None)
        for req in self._state.running:
            for page in req.pages[req.num_shared :]:
                claims[page] += 1
                self._same_holder(page, req)
        if isinstance(pool.tree_cache, RadixCache):
            for node in pool.tree_cache.walk():
                for page in node.pages:
                    claims[page] += 1
                    self._same_holder(page, node)
        wrong = {
            page: claims[page]
            for page in range(pool.token_to_kv_pool_allocator.num_pages)
            if claims[page] != (page not in pool.quarantined)
        }
        if wrong:
            raise InvariantViolation(f"pages with no holder or several (page: holders): {wrong}")

    def _check_host_pool(self) -> None:
        """Every host page is free or part of one copy, and copies belong to requests that wait."""
        tier = self._state.host_tier
        if tier is None:
            return
        claims = Counter(tier.allocator.free_pages())
        for copy in tier.copies():
            claims.update(copy.pages)
            if copy.rid not in self._state.requests:
                raise InvariantViolation(f"{copy.tag} outlived its request")
            if any(tier.allocator.ledger.holder(page) is not copy for page in copy.pages):
                raise InvariantViolation(f"{copy.tag} has pages that the ledger gives to another")
        wrong = {page: claims[page] for page in range(tier.allocator.num_pages) if claims[page] != 1}
        if wrong:
            raise InvariantViolation(f"host pages with no holder or several (page: holders): {wrong}")

    def _same_holder(self, page: int, holder: Holder | None) -> None:
        ledger = self._state.pool.token_to_kv_pool_allocator.ledger
        said = ledger.holder(page)
        if said is not holder:
            raise InvariantViolation(
                f"page {page} is held by {tag(holder)}, but the ledger says {tag(said)}; "
                f"its last moves: {ledger.history([page])}"
            )

    def _check_req_pool(self) -> None:
        """Every row is free or one running request's; whoever runs or waits is in the table of requests."""
        state = self._state
        rows = [req.row for req in state.running]
        if sorted(state.free_rows + [row for row in rows if row is not None]) != list(range(state.limits.num_rows)):
            raise InvariantViolation(f"rows do not add up: {rows} run, {sorted(state.free_rows)} are free")
        known = set(state.requests)
        stray = {req.rid for req in state.running} | {req.rid for req in state.waiting}
        if not stray <= known:
            raise InvariantViolation(f"requests that run or wait but have ended: {sorted(stray - known)}")

    def _check_tree_cache(self) -> None:
        """Counters against a recount; every lock belongs to a running request."""
        cache = self._state.pool.tree_cache
        if not isinstance(cache, RadixCache):
            return
        nodes = list(cache.walk())
        evictable = sum(len(node.pages) for node in nodes if not node.locks)
        protected = sum(len(node.pages) for node in nodes if node.locks)
        if (evictable, protected) != (cache.evictable_pages, cache.protected_pages):
            raise InvariantViolation(
                f"the tree counts {cache.evictable_pages} evictable and {cache.protected_pages} locked pages, "
                f"a recount finds {evictable} and {protected}"
            )
        locks: Counter[int] = Counter()
        for req in self._state.running:
            walk = req.node
            assert walk is None or isinstance(walk, Node)
            while walk is not None:
                locks[id(walk)] += 1
                walk = walk.parent
        wrong = [node for node in nodes if node.locks != locks[id(node)]]
        if wrong:
            raise InvariantViolation(f"nodes whose locks match no running requests: {[node.tag for node in wrong]}")
