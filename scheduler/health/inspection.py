"""Answers an operator's questions about requests, sessions and pages, without changing the scheduler's state.

The size and the cost of each answer are bounded, so that it can be computed between two steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from ebbtide.messages import Inspection, InspectReq, PageMap, PageMapReq, PageRun, Reply, RequestInfo

from ..lifecycle import Lifecycle
from ..memory.accounting import AuditedPool, QuarantineOwner
from ..memory.host_pool import HostCopy
from ..memory.ledger import PageOwner
from ..memory.session_slot import SessionSlot
from ..memory.sliding_window.window_span import WindowSpan
from ..request import Phase, Request
from ..sessions.session_controller import SessionController

MAX_PAGES = 4096  # maximum number of pages described in one answer
MAX_ENTRIES = 1024  # maximum number of running requests, of waiting requests and of sessions in one answer


class Inspector:
    """Describes the state of one scheduler.

    pools: all pools, including the host tier.
    """

    def __init__(self, lifecycle: Lifecycle, sessions: SessionController, pools: Sequence[AuditedPool]) -> None:
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._pools = {pool.name: pool for pool in pools}

    def reply(self, message: InspectReq | PageMapReq, now: float) -> Reply:
        """Answer a question.

        now: the current time, in seconds of the clock from which ``arrival_s`` was taken.
        """
        match message:
            case InspectReq():
                return Reply(message.call, inspection=self._inspect(message, now))
            case PageMapReq():
                return self._page_map(message)

    def _inspect(self, message: InspectReq, now: float) -> Inspection:
        limit = min(message.max_requests, MAX_ENTRIES)
        return Inspection(
            running=_described(self._lifecycle.running, limit, now),
            waiting=_described(self._lifecycle.waiting, limit, now),
            sessions=self._sessions.last_opened(min(message.max_sessions, MAX_ENTRIES)),
            num_sessions=self._sessions.num_open,
        )

    def _page_map(self, message: PageMapReq) -> Reply:
        pool = self._pools.get(message.pool)
        if pool is None:
            text = f"There is no pool {message.pool[:100]!r}; the pools are {', '.join(self._pools)}."
            return Reply(message.call, 404, "pool_not_found", text)
        owners = pool.ledger.owners
        first = max(message.first_page, 0)
        shown = owners[first : first + min(message.num_pages, MAX_PAGES)]
        grouped = [list(group) for _, group in groupby(shown, key=id)]
        runs = [PageRun(len(group), _kind(group[0]), _holder(group[0])) for group in grouped]
        return Reply(message.call, page_map=PageMap(len(owners), runs))


def _described(requests: Iterable[Request], limit: int, now: float) -> list[RequestInfo]:
    return [
        RequestInfo(
            rid=req.rid,
            state="running" if req.phase is Phase.RUNNING else "retracted" if req.is_retracted else "waiting",
            prompt_tokens=req.prompt_len,
            output_tokens=req.num_outputs,
            max_tokens=req.sampling.max_tokens,
            num_pages=len(req.pages),
            age_s=round(now - req.history.arrival_s, 3),
            num_retractions=req.history.retraction_count,
            protected=req.protected,
        )
        for req in islice(requests, limit)
    ]


def _kind(owner: PageOwner | None) -> str:
    """Return the name of the accounting term that counts the pages of ``owner``, or "quarantined"."""
    if owner is None:
        return "available"
    if owner.is_tree_node:
        return "protected" if owner.is_locked else "evictable"
    match owner:
        case SessionSlot() | WindowSpan():
            return "session_held"
        case QuarantineOwner():
            return "quarantined"
        case _:
            return "uncached"


def _holder(owner: PageOwner | None) -> str:
    match owner:
        case Request():
            return owner.rid
        case HostCopy(req=Request() as req):
            return req.rid
        case (SessionSlot() as slot) | WindowSpan(node=SessionSlot() as slot):
            return slot.session.rpartition("#")[0]
        case _:
            return ""
