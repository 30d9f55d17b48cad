"""Messages that show requests, sessions and pages to an operator. The messages contain no prompt text."""

from __future__ import annotations

import msgspec

from .base import Message, Part


class InspectReq(Message, frozen=True):
    """Front → scheduler: describe the open requests and sessions. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        max_requests: maximum number of running requests in the reply; the same limit applies to waiting requests.
        max_sessions: maximum number of sessions in the reply, which are the most recently opened ones.
    """

    call: str
    max_requests: int
    max_sessions: int


class PageMapReq(Message, frozen=True):
    """Front → scheduler: name the owners of ``num_pages`` pages of a pool. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        pool: name of the pool.
        first_page: page number of the first of these pages.
    """

    call: str
    pool: str
    first_page: int
    num_pages: int


class SessionInfo(Part, frozen=True):
    """One open session.

    Attributes:
        state: "running" (a turn is running or waiting), "warm" (KV is held) or "cold" (no KV is held).
        num_tokens: number of tokens of all committed turns.
        held_tokens: number of tokens in the whole pages that the session holds in the first pool.
        owner: the owner given when the session was opened; never shown to clients.
        held_in_pools: ``held_tokens`` for each pool, by name.
    """

    session_id: str
    streaming: bool
    state: str
    num_turns: int
    num_tokens: int
    held_tokens: int
    idle_s: float
    timeout_s: float
    owner: str = ""
    held_in_pools: dict[str, int] = msgspec.field(default_factory=dict)


class RequestInfo(Part, frozen=True):
    """One open request.

    Attributes:
        state: "running", "waiting" or "retracted" (waiting after a retraction).
        num_pages: number of pages of the first pool that the request uses, including shared pages.
        age_s: seconds since the request arrived in the scheduler.
        protected: True if the request is never retracted again.
    """

    rid: str
    state: str
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    num_pages: int
    age_s: float
    num_retractions: int
    protected: bool


class Inspection(Part, frozen=True):
    """The open requests and sessions.

    Attributes:
        running: in batch order.
        waiting: in queue order.
        sessions: the most recently opened ones, newest first.
        num_sessions: number of all open sessions.
    """

    running: list[RequestInfo]
    waiting: list[RequestInfo]
    sessions: list[SessionInfo]
    num_sessions: int


class PageRun(Part, frozen=True):
    """Consecutive pages of one owner.

    Attributes:
        kind: the accounting term to which the pages belong: "available", "evictable", "protected", "session_held",
            "uncached" or "quarantined".
        holder: id of the request or session that owns the pages; "" for any other owner.
    """

    num_pages: int
    kind: str
    holder: str


class PageMap(Part, frozen=True):
    """The owners of a range of pages.

    Attributes:
        total_pages: number of pages of the pool.
        runs: in the order of the page numbers.
    """

    total_pages: int
    runs: list[PageRun]
