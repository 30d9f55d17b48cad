"""After a violation of the memory books: find out what can still be trusted, give up the rest, serve on.

Nothing computes on a page in doubt. Requests that stand on one lose their memory, not their tokens, and are
recomputed. What the books say afterwards is derived anew from the structures that are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from ebbtide.plan import StepPlan

from ..memory.accounting import OwnershipError, owners_missing_pages
from ..request import Phase, Request
from ..state import State

Flights = deque[tuple[StepPlan, list[Request | None]]]


class Recovery:
    """Repairs a state in place. ``flights`` are the plans in flight with their requests."""

    def __init__(self, state: State, flights: Flights) -> None:
        self._state = state
        self._flights = flights

    def recover(self, pages: Iterable[int], *, everybody: bool) -> dict[str, list[int]]:
        """Bring the state into order; returns the pages that left service, by pool.

        pages: in doubt whatever the books say of them now.
        everybody: the violation was met in the middle of an operation, so no running request can be trusted to be
        whole, and all of them are recomputed; otherwise only those that stand on a page in doubt.
        """
        before = {pool.name: set(pool.quarantined) for pool in self._state.pools}
        errors = self._state.pool.find_ownership_errors([] if everybody else self._state.running)
        doubt = self._pages_in_doubt(errors, everybody=everybody).union(pages)
        torn = owners_missing_pages(errors)
        self._state.pool.quarantined |= doubt
        cache = self._state.pool.tree_cache
        # What is left in a list with a hole stands for the wrong tokens: its holder goes, though the pages are sound.
        alive = cache.drop_pages(doubt.union(*(held for owner, held in cache.owners() if id(owner) in torn)))
        for req in list(self._state.requests.values()):
            is_torn = id(req) in torn and req.phase is Phase.RUNNING
            if is_torn or self._must_leave(req, doubt, alive, everybody=everybody):
                self._send_back(req)
        self._state.filter_batch()
        self._rebuild()
        self._keep_promises()
        gone = {pool.name: sorted(pool.quarantined - before[pool.name]) for pool in self._state.pools}
        return {name: pages for name, pages in gone.items() if pages}

    def _pages_in_doubt(self, errors: Iterable[OwnershipError], *, everybody: bool) -> set[int]:
        """Pages with several claims, none, or one that the ledger denies; one out of service must have none.

        A page without a claim that was a running request's (with ``everybody``), or hung in a part of the tree that
        came off, is in nobody's hands once that request has left, and is simply free afterwards.
        """
        return {
            error.page
            for error in errors
            if error.listed_by or not (everybody or (error.ledger_owner and error.ledger_owner.is_tree_node))
        }

    def _must_leave(self, req: Request, doubt: Collection[int], alive: Collection[int], *, everybody: bool) -> bool:
        if req.phase is Phase.WAITING:
            return everybody and not (req in self._state.waiting or self._is_held(req))  # was on its way back
        return everybody or id(req.node) not in alive or any(page in doubt for page in req.pages)

    def _is_held(self, req: Request) -> bool:
        return any(req in other.sibling_choices for other in self._state.requests.values())

    def _send_back(self, req: Request) -> None:
        """Back to the queue without counting: it was not the request's size that cost it its memory."""
        req.history.high_water = max(req.history.high_water, req.computed)
        req.clear_kv_state()
        req.phase = Phase.WAITING
        req.is_retracted = False
        req.steps_in_flight = req.samples_in_flight = 0
        for _, requests in self._flights:
            requests[:] = [None if other is req else other for other in requests]
        if req in self._state.waiting:
            self._state.waiting.remove(req, self._state.queue_class(req))
        self._state.add_request_to_queue(req, is_retracted=True)

    def _rebuild(self) -> None:
        """Derive the pools' books and the rows from what is left."""
        state = self._state
        for pool in state.pools:
            pool.repair(state.running)
        rows = {req.row for req in state.running}
        state.free_rows[:] = [row for row in range(state.limits.num_rows - 1, -1, -1) if row not in rows]
        state.num_retracted = sum(req.is_retracted for req in state.requests.values())

    def _keep_promises(self) -> None:
        """The pool has shrunk: protected requests whose needs no longer add up leave, the youngest first."""
        pool = self._state.pool
        while True:
            protected = [req for req in self._state.running if req.protected]
            need = sum(min(-(-req.max_kv_tokens // pool.page_size), pool.capacity) for req in protected)
            if need <= pool.capacity or len(protected) < 2:
                return
            self._send_back(max(protected, key=lambda req: req.arrival))
            self._state.filter_batch()
            self._rebuild()
