"""Recovery from an invariant violation: quarantine the suspect pages, recompute the requests that used them, and go on.

No request computes on a suspect page. A request that holds a suspect page keeps its tokens and loses its K/V, which is
recomputed. All counters are then derived from the remaining data structures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..lifecycle import Lifecycle
from ..memory.accounting import AuditedPool, OwnershipError, owners_missing_pages
from ..memory.kv_pool import KvPool, promised_pages
from ..memory.pool import Pool
from ..request import Request
from ..state import StepsInFlight


class Recovery:
    """Repairs the scheduler's state in place."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        pools: Sequence[AuditedPool],
        pool: Pool,
        kv_pools: Sequence[KvPool],
        steps_in_flight: StepsInFlight,
    ) -> None:
        """pool: the pool with the prefix cache. kv_pools: the pools that running requests use. pools: all pools."""
        self._lifecycle = lifecycle
        self._pools = pools
        self._pool = pool
        self._kv_pools = kv_pools
        self._steps_in_flight = steps_in_flight

    def recover(self, pages: Mapping[str, Sequence[int]], *, everybody: bool) -> dict[str, list[int]]:
        """Repair the state.

        Args:
            pages: page numbers by pool name that are suspect even if the accounting is consistent for them now.
            everybody: recompute all running requests, because the violation interrupted an operation; otherwise
                recompute only the requests that hold a suspect page.

        Returns:
            The pages that were taken out of service, by pool.
        """
        before = {pool.name: set(pool.quarantined) for pool in self._pools}
        torn = set[int]().union(
            *(self._quarantine(pool, pages.get(pool.name, ()), everybody=everybody) for pool in self._pools)
        )
        doubt = self._pool.quarantined
        cache = self._pool.tree_cache
        # Drop every owner that lost a page: its other pages are intact but at wrong positions.
        alive = cache.drop_pages(doubt.union(*(held for owner, held in cache.owners() if id(owner) in torn)))
        for req in list(self._lifecycle.running):
            in_doubt = id(req) in torn or id(req.node) not in alive or not doubt.isdisjoint(req.pages)
            if everybody or in_doubt:
                self._release(req)
        self._rebuild()
        self._keep_promises()
        gone = {pool.name: sorted(pool.quarantined - before[pool.name]) for pool in self._pools}
        return {name: pages for name, pages in gone.items() if pages}

    def _quarantine(self, pool: AuditedPool, pages: Sequence[int], *, everybody: bool) -> set[int]:
        """Returns ``id()`` of every owner that holds a suspect page or has lost a page.

        In a pool that running requests use, the suspect pages are taken out of service here; other pools do this
        in ``repair``.
        """
        everybody = everybody and pool in self._kv_pools
        running = [] if everybody else self._lifecycle.running
        errors = pool.find_ownership_errors(running)
        doubt = self._pages_in_doubt(errors, everybody=everybody).union(pages)
        if pool in self._kv_pools:
            pool.quarantined |= doubt
        holders = {id(owner) for owner, held in pool.owners(running) if not doubt.isdisjoint(held)} if doubt else set()
        return owners_missing_pages(errors) | holders

    def _pages_in_doubt(self, errors: Iterable[OwnershipError], *, everybody: bool) -> set[int]:
        """Find the pages that have no owner, several owners, or an owner that the ledger does not record. A quarantined
        page must have no owner.

        A page that no owner lists is free and not suspect in two cases: it belonged to a running request and
        ``everybody`` is set, or it belonged to a removed part of the tree.
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
        if req in self._lifecycle.waiting:  # the request was being admitted
            self._lifecycle.leave_queue([req])
        self._lifecycle.requeue(req, front=True, counted=False)

    def _rebuild(self) -> None:
        """Derive the pools' accounting, the rows and the counters from the remaining structures."""
        for pool in self._pools:
            pool.repair(self._lifecycle.running)
        self._lifecycle.recount()

    def _keep_promises(self) -> None:
        """Release protected requests, the youngest first, until the reservations of the others fit each pool.

        A repair may have made a pool smaller.
        """
        while True:
            protected = [req for req in self._lifecycle.running if req.protected]
            fits = all(sum(promised_pages(pool, req) for req in protected) <= pool.capacity for pool in self._kv_pools)
            if fits or len(protected) < 2:
                return
            self._release(max(protected, key=lambda req: req.arrival))
            self._rebuild()
