"""Checks the memory invariants: the owners' counters add up to the pool size, and the ledger records the same owners.

The module only reads the owners' counters and data structures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ebbtide.errors import InvariantViolation
from ebbtide.messages import MAMBA_POOL
from ebbtide.plan import PlanItem

from ..lifecycle import Lifecycle
from ..memory.accounting import AuditedPool, describe, mismatches
from ..memory.kv_pool import FurtherPool
from ..memory.ledger import tag
from ..memory.pool import Pool
from ..request import Request

NAMED_ROWS = 8  # maximum number of rows listed in a message


class InvariantChecker:
    """Raises InvariantViolation, with the affected pages and their owners, if an invariant does not hold."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        pool: Pool,
        more_pools: Sequence[FurtherPool],
        pools: Sequence[AuditedPool],
        num_rows: int,
    ) -> None:
        """pools: all pools, including the host tier."""
        self._lifecycle = lifecycle
        self._pool = pool
        self._more_pools = more_pools
        self._pools = pools
        self._num_rows = num_rows

    def audit_plan(self, items: Sequence[PlanItem], requests: Sequence[Request]) -> None:
        """Check a plan before it is executed.

        Each page that an item writes to must be private to its request. Each page that it adds to the page table must
        be private to its request or locked in the tree. The page numbers in the item must equal those in the request's
        page list.
        """
        size = self._pool.page_size
        owners = self._pool.ledger.owners
        try:
            # One pass, about 60 ns per row. The usual item is a decode row that adds no page, or only the page that it
            # writes to.
            unusual = [
                (item, req)
                for item, req in zip(items, requests, strict=True)
                if owners[req.pages[item.start // size]] is not req
                or (item.pages and item.pages != [req.pages[item.start // size]])
                or (item.pages and item.page_index != item.start // size)
                or item.num_samples > 1
            ]
        except IndexError:
            raise InvariantViolation(_without_page(items, requests, size)) from None
        for item, req in unusual:
            self._audit_item(item, req, item.start // size)
        for number, pool in enumerate(self._more_pools, 1):
            for item, req in _unusual_elsewhere(items, requests, pool, number):
                self._audit_elsewhere(item, req, pool, number)

    def _audit_elsewhere(self, item: PlanItem, req: Request, pool: FurtherPool, number: int) -> None:
        """Check the request's pages in an additional pool, and the pages that the item adds to that pool's page table.

        The first item after an admission adds all pages of the request.
        """
        pages = pool.held[req.rid]
        first, held = pages.first, pages.pages
        self._agrees(held[pages.num_shared :], req, pool)
        index, added = item.write_to(number)
        if added or item.init is not None:
            begin = first if item.init is not None else max(index, first)
            for page in held[begin - first : pages.num_shared]:
                self._is_locked(page, req, pool)
            _same_pages(req, added, held[begin - first :], pool, placed=index == begin)
        begin = item.start // pool.page_size
        end = (item.end + max(item.num_samples, 1) - 2) // pool.page_size + 1
        if not first <= begin < end <= first + len(held):
            raise InvariantViolation(
                f"{req.tag} is about to write tokens {item.start} to {item.end} in pool {pool.name} "
                f"but has only the pages with index {first} to {first + len(held)} (exclusive)"
            )

    def _audit_item(self, item: PlanItem, req: Request, page_index: int) -> None:
        """Check the pages that the item adds to the page table, and the pages that it writes to.

        Of the pages that a prefill chunk writes to, only the first one is checked.
        """
        if not item.pages:
            self._agrees(
                req.pages[page_index : (item.start + max(item.num_samples, 1) - 1) // req.page_size + 1],
                req,
                self._pool,
            )
            return
        # Check the owners first: a page with a wrong owner is suspect even if the lists are equal.
        self._agrees(req.pages[min(page_index, max(req.num_shared, item.page_index)) :], req, self._pool)
        for page in req.pages[item.page_index : req.num_shared]:
            self._is_locked(page, req, self._pool)
        _same_pages(req, item.pages, req.pages[item.page_index :], self._pool)

    def self_check_during_busy(self) -> None:
        """Check the accounting equation of each pool, and a part of the pages, in rotation.

        The cost does not depend on the pool size.
        """
        running = self._lifecycle.running
        for pool in self._pools:
            self._check_pool_invariant(pool)
            errors = pool.sweep(running)
            if errors:
                raise InvariantViolation(_of(pool, describe(errors, pool.ledger)))
        if len(running) + len(self._lifecycle.free_rows) != self._num_rows:
            self._check_req_pool()

    def on_idle(self) -> None:
        """Check every page, every row, and the locks, sizes and counters of the prefix tree."""
        self._check_all_pools()
        self._check_req_pool()
        self._check_tree_cache()

    def _check_all_pools(self) -> None:
        for pool in self._pools:
            self._check_pool_invariant(pool)
        for pool in self._pools:
            if pool not in self._more_pools:
                self._check_full_pool(pool)
        for further in self._more_pools:
            check = self._check_mamba_pool if further.name == MAMBA_POOL else self._check_swa_pool
            check(further)

    def _check_pool_invariant(self, pool: AuditedPool) -> None:
        """Check that the terms add up to the total, and that the term ``uncached`` equals the number of private pages
        in the requests' lists.
        """
        accounting = pool.accounting()
        held = pool.recount(self._lifecycle.running)
        total_accounted = (
            accounting.available + accounting.evictable + accounting.protected + accounting.session_held + held
        )
        negative = (
            min(accounting.available, accounting.evictable, accounting.protected, accounting.session_held, held) < 0
        )
        leak = total_accounted != accounting.total or negative
        if held != accounting.uncached:
            self._unbalanced(pool, f"requests hold {held} private pages, but {accounting.uncached} are counted")
        if leak:
            self._unbalanced(
                pool, f"{accounting.total} pages, of which {total_accounted} are accounted for: {accounting}"
            )

    def _unbalanced(self, pool: AuditedPool, terms: str) -> NoReturn:
        """Raise InvariantViolation for a wrong sum. The message names the pages that explain the difference."""
        errors = pool.find_ownership_errors(self._lifecycle.running)
        raise InvariantViolation(_of(pool, f"{terms}; {describe(errors, pool.ledger)}"))

    def _check_full_pool(self, pool: AuditedPool) -> None:
        """Check that each page is in the list of exactly one owner, and that the ledger records the same owner."""
        errors = pool.find_ownership_errors(self._lifecycle.running)
        if errors:
            raise InvariantViolation(_of(pool, describe(errors, pool.ledger)))

    def _check_swa_pool(self, pool: FurtherPool) -> None:
        """Check that exactly one owner lists each page, that every request has exactly the pages of its window, and
        that the counters and locks of cached pages are correct.
        """
        self._check_further_pool(pool, "pages")

    def _check_mamba_pool(self, pool: FurtherPool) -> None:
        """Check that exactly one owner lists each state slot, and that every checkpoint belongs to a node of the
        prefix tree.
        """
        self._check_further_pool(pool, "slots")

    def _check_further_pool(self, pool: FurtherPool, unit: str) -> None:
        errors = pool.find_ownership_errors(self._lifecycle.running)
        if errors:
            leaked = [error.page for error in errors if not error.listed_by]
            shared = [error.page for error in errors if len(error.listed_by) > 1]
            raise InvariantViolation(
                _of(
                    pool,
                    f"leaked {unit} (expected - free - tree - running): {leaked or 'none'}, {unit} with several "
                    f"owners: {shared or 'none'}; {describe(errors, pool.ledger)}",
                )
            )
        faults = pool.validate(self._lifecycle.running)
        if faults:
            raise InvariantViolation(_of(pool, "; ".join(faults)))

    def _is_locked(self, page: int, req: Request, pool: AuditedPool) -> None:
        owner = pool.ledger.owner(page)
        if owner is None or not owner.is_locked:
            raise InvariantViolation(
                f"{req.tag} is about to read page {page}, which is owned by {tag(owner)} and not locked; "
                f"last moves: {pool.ledger.history([page])}",
                pages={pool.name: (page,)},
            )

    def _agrees(self, pages: Sequence[int], req: Request, pool: AuditedPool) -> None:
        errors = mismatches(pool.ledger, pages, req)
        if errors:
            suspect = {pool.name: [error.page for error in errors]}
            raise InvariantViolation(_of(pool, describe(errors, pool.ledger)), pages=suspect)

    def _check_req_pool(self) -> None:
        """Check that each row is free or belongs to one running request, and that all requests are registered."""
        lifecycle = self._lifecycle
        tenants: dict[int | None, list[str]] = {row: [] for row in range(self._num_rows)}
        for row in lifecycle.free_rows:
            tenants.setdefault(row, []).append("the free list")
        for req in lifecycle.running:
            tenants.setdefault(req.row, []).append(req.tag)
        wrong = [f"row {row}: {' and '.join(who) or 'no owner'}" for row, who in tenants.items() if len(who) != 1]
        if wrong or len(tenants) != self._num_rows:
            raise InvariantViolation(f"rows without exactly one owner: {', '.join(wrong[:NAMED_ROWS])}")
        known = set(lifecycle.requests)
        stray = {req.rid for req in lifecycle.running} | {req.rid for req in lifecycle.waiting}
        if not stray <= known:
            raise InvariantViolation(f"running or waiting requests that have ended: {sorted(stray - known)}")

    def _check_tree_cache(self) -> None:
        """Check the cache's counters by a recount, and check that every lock belongs to a running request."""
        pool = self._pool
        faults = pool.tree_cache.validate(self._lifecycle.running)
        if faults:
            raise InvariantViolation("; ".join(faults))


def _without_page(items: Sequence[PlanItem], requests: Sequence[Request], size: int) -> str:
    for item, req in zip(items, requests, strict=True):
        if item.start // size >= len(req.pages):
            return f"{req.tag} is about to write token {item.start} but has only {len(req.pages)} pages"
    raise AssertionError("every request has the page that it writes to")


def _unusual_elsewhere(
    items: Sequence[PlanItem], requests: Sequence[Request], pool: FurtherPool, number: int
) -> list[tuple[PlanItem, Request]]:
    """Return the items that need a full check in an additional pool: all items except decode rows that write to a
    private page and add no page.
    """
    size, owners, held = pool.page_size, pool.ledger.owners, pool.held
    try:
        return [  # one pass, about 150 ns per row
            (item, req)
            for item, req in zip(items, requests, strict=True)
            if (item.more_pages and item.writes_to(number))
            or item.init is not None
            or item.num_samples > 1
            or (index := item.start // size - (pages := held[req.rid]).first) < 0
            or owners[pages.pages[index]] is not req
        ]
    except IndexError:  # a request lacks the page that it writes to; the full check reports it
        return list(zip(items, requests, strict=True))


def _same_pages(
    req: Request, added: Sequence[int], held: Sequence[int], pool: AuditedPool, *, placed: bool = True
) -> None:
    """Check that ``added``, the pages that a plan adds to a page table, equals ``held``, the request's pages.

    If the lists differ, the suspect pages are those that only ``added`` contains, and also one page of the request, so
    that the request is recomputed.
    placed: True if the plan adds the pages at the right index.
    """
    if not placed or list(added) != list(held):
        suspect = [*{*added} - {*held}, *held[-1:]]
        raise InvariantViolation(
            _of(pool, f"{req.tag} has the pages {held}, but the plan adds {added}"), pages={pool.name: suspect}
        )


def _of(pool: AuditedPool, words: str) -> str:
    return f"pool {pool.name}: {words}"
