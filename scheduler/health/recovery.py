"""Recovery from an invariant violation: quarantine the suspect pages, recompute the requests that used them, and go on.

No request computes on a suspect page. A request that holds one loses its K/V, not its tokens, and is recomputed. All
accounting is then derived from the remaining structures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebbtide.paging import pages_for

from ..lifecycle import Lifecycle
from ..memory.accounting import AuditedPool, OwnershipError, owners_missing_pages
from ..memory.pool import Pool
from ..request import Request
from ..state import StepsInFlight


class Recovery:
    """Repairs the scheduler's state in place."""

    def __init__(
        self, lifecycle: Lifecycle, pools: Sequence[AuditedPool], pool: Pool, steps_in_flight: StepsInFlight
    ) -> None:
        """pools: all of them; pool: the one that the prefix cache is on."""
        self._lifecycle = lifecycle
        self._pools = pools
        self._pool = pool
        self._steps_in_flight = steps_in_flight

    def recover(self, pages: Iterable[int], *, everybody: bool) -> dict[str, list[int]]:
        """Repair the state.

        Args:
            pages: suspect even if the accounting is consistent for them now.
            everybody: the violation interrupted an operation, so no running request is certain to be intact, and all
                are recomputed; otherwise only those that hold a suspect page.

        Returns:
            The pages that were taken out of service, by pool.
        """
        running = self._lifecycle.running
        before = {pool.name: set(pool.quarantined) for pool in self._pools}
        errors = self._pool.find_ownership_errors([] if everybody else running)
        doubt = self._pages_in_doubt(errors, everybody=everybody).union(pages)
        torn = owners_missing_pages(errors) | self._in_doubt_elsewhere()
        self._pool.quarantined |= doubt
        cache = self._pool.tree_cache
        # In an owner that lost a page, the other pages are at wrong positions: drop it, although they are intact.
        alive = cache.drop_pages(doubt.union(*(held for owner, held in cache.owners() if id(owner) in torn)))
        for req in list(running):
            in_doubt = id(req) in torn or id(req.node) not in alive or any(page in doubt for page in req.pages)
            if everybody or in_doubt:
                self._release(req)
        self._rebuild()
        self._keep_promises()
        gone = {pool.name: sorted(pool.quarantined - before[pool.name]) for pool in self._pools}
        return {name: pages for name, pages in gone.items() if pages}

    def _in_doubt_elsewhere(self) -> set[int]:
        """``id()`` of every owner in an ownership error of the other pools, each of which repairs its own pages."""
        others = [pool for pool in self._pools if pool is not self._pool]
        errors = [error for pool in others for error in pool.find_ownership_errors(self._lifecycle.running)]
        return owners_missing_pages(errors) | {id(owner) for error in errors for owner in error.listed_by}

    def _pages_in_doubt(self, errors: Iterable[OwnershipError], *, everybody: bool) -> set[int]:
        """Pages with no owner, several, or one that the ledger does not record. A quarantined page must have no owner.

        A page that no owner lists is free, not suspect, if it belonged to a running request (with ``everybody``) or to
        a part of the tree that was removed.
        """
        return {
            error.page
            for error in errors
            if error.listed_by or not (everybody or (error.ledger_owner and error.ledger_owner.is_tree_node))
        }

    def _release(self, req: Request) -> None:
        """Requeue a running request without counting a retraction: memory pressure is not the reason."""
        req.history.high_water = max(req.history.high_water, req.computed)
        req.clear_kv_state()
        req.steps_in_flight = req.samples_in_flight = 0
        for _, requests in self._steps_in_flight:
            requests[:] = [None if other is req else other for other in requests]
        if req in self._lifecycle.waiting:  # it was being admitted
            self._lifecycle.leave_queue([req])
        self._lifecycle.requeue(req, front=True, counted=False)

    def _rebuild(self) -> None:
        """Derive the pools' accounting, rows and counters from what is left."""
        for pool in self._pools:
            pool.repair(self._lifecycle.running)
        self._lifecycle.recount()

    def _keep_promises(self) -> None:
        """Release protected requests, the youngest first, until their needs fit the pool, which has shrunk."""
        pool = self._pool
        while True:
            protected = [req for req in self._lifecycle.running if req.protected]
            need = sum(min(pages_for(req.max_kv_tokens, pool.page_size), pool.capacity) for req in protected)
            if need <= pool.capacity or len(protected) < 2:
                return
            self._release(max(protected, key=lambda req: req.arrival))
            self._rebuild()
