"""The memory books: what each holder counts must add up to the pool, and the ledger must say the same.

Reads the holders' own counters and structures; changes nothing.
"""

from __future__ import annotations

from collections import Counter

from ebbtide.errors import InvariantViolation

from .memory.radix_cache import Node, RadixCache
from .state import State


class InvariantChecker:
    """Raises InvariantViolation with the pages and their holders when the books do not balance."""

    def __init__(self, state: State) -> None:
        self._state = state

    def self_check_during_busy(self) -> None:
        """The conservation law, after every step. Costs the same for every pool."""
        self._check_pool_invariant()

    def on_idle(self) -> None:
        """Everything, when nothing runs: every page, every row, the tree and its counters."""
        self._check_all_pools()
        self._check_req_pool()
        self._check_tree_cache()

    def _check_pool_invariant(self) -> None:
        books = self._state.pool.books()
        accounted = books.available + books.evictable + books.protected + books.session_held + books.uncached
        if accounted != books.total:
            raise InvariantViolation(f"the pool of {books.total} pages accounts for {accounted}: {books}")

    def _check_all_pools(self) -> None:
        self._check_pool_invariant()
        self._check_full_pool()
        self._check_host_pool()

    def _check_full_pool(self) -> None:
        """Every page is in exactly one holder's own structure, and the ledger names that holder."""
        pool = self._state.pool
        claims = Counter(pool.allocator.free_pages())
        for page in pool.allocator.free_pages():
            self._same_holder(page, None)
        for req in self._state.running:
            for page in req.pages[req.num_shared :]:
                claims[page] += 1
                self._same_holder(page, req)
        if isinstance(pool.cache, RadixCache):
            for node in pool.cache.walk():
                for page in node.pages:
                    claims[page] += 1
                    self._same_holder(page, node)
        wrong = {page: claims[page] for page in range(pool.allocator.num_pages) if claims[page] != 1}
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
                raise InvariantViolation(f"{copy} outlived its request")
            if any(tier.allocator.ledger.holder(page) is not copy for page in copy.pages):
                raise InvariantViolation(f"{copy} has pages that the ledger gives to another")
        wrong = {page: claims[page] for page in range(tier.allocator.num_pages) if claims[page] != 1}
        if wrong:
            raise InvariantViolation(f"host pages with no holder or several (page: holders): {wrong}")

    def _same_holder(self, page: int, holder: object) -> None:
        said = self._state.pool.allocator.ledger.holder(page)
        if said is not holder:
            raise InvariantViolation(f"page {page} is held by {holder}, but the ledger says {said}")

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
        cache = self._state.pool.cache
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
            raise InvariantViolation(f"nodes whose locks match no running requests: {[str(node) for node in wrong]}")
