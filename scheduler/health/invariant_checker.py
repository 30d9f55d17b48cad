"""The memory books: what each holder counts must add up to the pool, and the ledger must say the same.

Reads the holders' own counters and structures; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ebbtide.errors import InvariantViolation
from ebbtide.plan import PlanItem

from ..memory.accounting import AuditedPool, describe, mismatches
from ..memory.ledger import tag
from ..request import Request
from ..state import State

NAMED_ROWS = 8  # in a message


class InvariantChecker:
    """Raises InvariantViolation with the pages and their holders when the books do not balance."""

    def __init__(self, state: State) -> None:
        self._state = state

    def audit_plan(self, items: Sequence[PlanItem], requests: Sequence[Request]) -> None:
        """Before a plan runs: every page that it writes to is its request's own, and every page that it is told is its
        request's own or locked in the tree."""
        size = self._state.pool.page_size
        owners = self._state.pool.ledger.owners
        try:
            closer = [  # in one go, some 60 ns a row: a row that decodes is told the page it writes to, or none
                (item, req)
                for item, req in zip(items, requests, strict=True)
                if owners[req.pages[item.start // size]] is not req
                or (item.pages and (len(item.pages) > 1 or item.page_index != item.start // size))
            ]
        except IndexError:
            raise InvariantViolation(_without_page(items, requests, size)) from None
        for item, req in closer:
            self._audit_item(item, req, item.start // size)

    def _audit_item(self, item: PlanItem, req: Request, page_index: int) -> None:
        """The page it writes to first, and the pages that the runner is told with it: the last ones of its list."""
        if not item.pages:
            self._agrees(req.pages[page_index : page_index + 1], req)
            return
        self._agrees(req.pages[min(page_index, max(req.num_shared, item.page_index)) :], req)
        for page in req.pages[item.page_index : req.num_shared]:
            self._is_locked(page, req)

    def self_check_during_busy(self) -> None:
        """The conservation law, and a share of all pages against the ledger, in turn. Costs the same for every pool."""
        running = self._state.running
        for pool in self._state.pools:
            self._check_pool_invariant(pool)
            errors = pool.sweep(running)
            if errors:
                raise InvariantViolation(_of(pool, describe(errors, pool.ledger)))
        if len(running) + len(self._state.free_rows) != self._state.limits.num_rows:
            self._check_req_pool()

    def on_idle(self) -> None:
        """Everything, when nothing runs: every page, every row, the tree and its counters."""
        self._check_all_pools()
        self._check_req_pool()
        self._check_tree_cache()

    def _check_all_pools(self) -> None:
        for pool in self._state.pools:
            self._check_pool_invariant(pool)
            self._check_full_pool(pool)

    def _check_pool_invariant(self, pool: AuditedPool) -> None:
        """The terms add up, and what requests hold by their own lists is what is booked for them."""
        accounting = pool.accounting()
        held = pool.recount(self._state.running)
        total_accounted = (
            accounting.available + accounting.evictable + accounting.protected + accounting.session_held + held
        )
        negative = (
            min(accounting.available, accounting.evictable, accounting.protected, accounting.session_held, held) < 0
        )
        leak = total_accounted != accounting.total or negative
        if held != accounting.uncached:
            self._unbalanced(pool, f"requests hold {held} pages of their own, but {accounting.uncached} are booked")
        if leak:
            self._unbalanced(
                pool, f"{accounting.total} pages, of which {total_accounted} are accounted for: {accounting}"
            )

    def _unbalanced(self, pool: AuditedPool, terms: str) -> NoReturn:
        """The sum says that something is wrong; the pages say what."""
        errors = pool.find_ownership_errors(self._state.running)
        raise InvariantViolation(_of(pool, f"{terms}; {describe(errors, pool.ledger)}"))

    def _check_full_pool(self, pool: AuditedPool) -> None:
        """Every page is in exactly one holder's own structure, and the ledger names that holder."""
        errors = pool.find_ownership_errors(self._state.running)
        if errors:
            raise InvariantViolation(_of(pool, describe(errors, pool.ledger)))

    def _is_locked(self, page: int, req: Request) -> None:
        owner = self._state.pool.ledger.owner(page)
        if owner is None or not owner.is_locked:
            raise InvariantViolation(
                f"{req.tag} is about to read page {page}, which is owned by {tag(owner)} and not locked; "
                f"last moves: {self._state.pool.ledger.history([page])}",
                pages=(page,),
            )

    def _agrees(self, pages: Sequence[int], req: Request) -> None:
        ledger = self._state.pool.ledger
        errors = mismatches(ledger, pages, req)
        if errors:
            raise InvariantViolation(describe(errors, ledger), pages=tuple(error.page for error in errors))

    def _check_req_pool(self) -> None:
        """Every row is free or one running request's; whoever runs or waits is in the table of requests."""
        state = self._state
        tenants: dict[int | None, list[str]] = {row: [] for row in range(state.limits.num_rows)}
        for row in state.free_rows:
            tenants.setdefault(row, []).append("the free list")
        for req in state.running:
            tenants.setdefault(req.row, []).append(req.tag)
        wrong = [f"row {row}: {' and '.join(who) or 'nobody'}" for row, who in tenants.items() if len(who) != 1]
        if wrong or len(tenants) != state.limits.num_rows:
            raise InvariantViolation(f"rows without exactly one holder: {', '.join(wrong[:NAMED_ROWS])}")
        known = set(state.requests)
        stray = {req.rid for req in state.running} | {req.rid for req in state.waiting}
        if not stray <= known:
            raise InvariantViolation(f"requests that run or wait but have ended: {sorted(stray - known)}")

    def _check_tree_cache(self) -> None:
        """Counters against a recount; every lock belongs to a running request."""
        pool = self._state.pool
        faults = pool.tree_cache.validate(self._state.running)
        if faults:
            raise InvariantViolation("; ".join(faults))


def _without_page(items: Sequence[PlanItem], requests: Sequence[Request], size: int) -> str:
    for item, req in zip(items, requests, strict=True):
        if item.start // size >= len(req.pages):
            return f"{req.tag} is about to write token {item.start} and has only {len(req.pages)} pages"
    raise AssertionError("every request has the page")


def _of(pool: AuditedPool, words: str) -> str:
    return f"pool {pool.name}: {words}"
