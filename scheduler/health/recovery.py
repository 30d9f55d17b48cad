"""Recovery from an invariant violation: suspect pages are quarantined, and the requests that used them are recomputed.

No request uses a suspect page again. A request that holds a suspect page keeps its tokens, but its K/V is dropped and
recomputed. All counters are then derived from the remaining data structures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..lifecycle import Lifecycle
from ..memory.accounting import AuditedPool, OwnershipError, owners_missing_pages
from ..memory.kv_pool import FurtherPool, KvPool, promised_pages
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
        more_pools: Sequence[FurtherPool],
        steps_in_flight: StepsInFlight,
    ) -> None:
        """
        pools: all pools, including the host tier.
        pool: the pool with the prefix cache.
        more_pools: the other pools that running requests use.
        """
        self._lifecycle = lifecycle
        self._pools = pools
        self._pool = pool
        self._more_pools = more_pools
        self._kv_pools: list[KvPool] = [pool, *more_pools]
        self._steps_in_flight = steps_in_flight

    def recover(self, pages: Mapping[str, Sequence[int]], *, everybody: bool) -> dict[str, list[int]]:
        """Repair the state.

        Args:
            pages: pool name → page numbers that are suspect even if their accounting is consistent now.
            everybody: True to recompute all running requests, because the violation interrupted an operation; False to
                recompute only the requests that hold a suspect page.

        Returns:
            Pool name → the pages that were quarantined.
        """
        before = {pool.name: set(pool.quarantined) for pool in self._pools}
        torn = set[int]().union(
            *(self._quarantine(pool, pages.get(pool.name, ()), everybody=everybody) for pool in self._pools)
        )
        doubt = self._pool.quarantined
        cache = self._pool.tree_cache
        # Drop the pages of every owner that lost a page: its other pages are intact, but at wrong positions.
        alive = cache.drop_pages(doubt.union(*(held for owner, held in cache.owners() if id(owner) in torn)))
        for pool in self._more_pools:
            pool.drop_owners(torn)
        for req in list(self._lifecycle.running):
            in_doubt = id(req) in torn or id(req.node) not in alive or not doubt.isdisjoint(req.pages)
            if everybody or in_doubt or not all(pool.is_intact(req) for pool in self._more_pools):
                self._release(req)
        self._rebuild()
        self._keep_promises()
        gone = {pool.name: sorted(pool.quarantined - before[pool.name]) for pool in self._pools}
        return {name: pages for name, pages in gone.items() if pages}

    def _quarantine(self, pool: AuditedPool, pages: Sequence[int], *, everybody: bool) -> set[int]:
        """Return the ``id()`` of every owner that holds a suspect page or has lost a page.

        In the pools that running requests use, this function quarantines the suspect pages. Other pools do so in
        ``repair``.
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
        """Return the pages that are in no owner's list, in several lists, or in the list of an owner other than the one
        that the ledger records. A quarantined page must be in no list.

        A page that is in no owner's list is free, and not suspect, in two cases: if ``everybody`` is set, or if the
        ledger assigns it to a tree node, which must have been removed.
        """
        return {
            error.page
            for error in errors
            if error.listed_by or not (everybody or (error.ledger_owner and error.ledger_owner.is_tree_node))
        }

    def _release(self, req: Request) -> None:
        """Requeue a running request. Do not count this as a retraction, because memory pressure is not the reason."""
        req.history.high_water = max(req.history.high_water, req.computed)
        req.clear_kv_state()
        req.steps_in_flight = req.samples_in_flight = 0
        for _, requests in self._steps_in_flight:
            requests[:] = [None if other is req else other for other in requests]
        if req in self._lifecycle.waiting:  # the request was being admitted
            self._lifecycle.leave_queue([req])
        self._lifecycle.requeue(req, front=True, counted=False)

    def _rebuild(self) -> None:
        """Derive the pools' accounting, the rows and the counters from the remaining data structures."""
        for pool in self._pools:
            pool.repair(self._lifecycle.running)
        self._lifecycle.recount()

    def _keep_promises(self) -> None:
        """Requeue protected requests, the youngest first, until the reservations of the others fit into each pool.

        This is necessary because a repair may have made a pool smaller.
        """
        while True:
            protected = [req for req in self._lifecycle.running if req.protected]
            fits = all(sum(promised_pages(pool, req) for req in protected) <= pool.capacity for pool in self._kv_pools)
            if fits or len(protected) < 2:
                return
            self._release(max(protected, key=lambda req: req.arrival))
            self._rebuild()
