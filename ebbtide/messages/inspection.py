"""Messages that show requests, sessions and pages to an operator. The messages contain no prompt text."""

from __future__ import annotations

from .base import Message, Part


class InspectReq(Message, frozen=True):
    """Front → scheduler: describe the open requests and sessions. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        max_requests: maximum number of running requests in the answer, and also of waiting requests.
        max_sessions: maximum number of sessions in the answer, which are those opened last.
    """

    call: str
    max_requests: int
    max_sessions: int


class PageMapReq(Message, frozen=True):
    """Front → scheduler: name the holders of ``num_pages`` pages of a pool. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        pool: name of the pool.
        first_page: number of the first page described.
    """

    call: str
    pool: str
    first_page: int
    num_pages: int


class SessionInfo(Part, frozen=True):
    """One open session.

    Attributes:
        state: "running" (a turn runs or waits), "warm" (KV is held) or "cold" (no KV is held).
        num_tokens: tokens of all committed turns.
        held_tokens: tokens whose KV is held for the session, in whole pages.
        owner: the owner named when the session was opened; no client may see it.
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


class RequestInfo(Part, frozen=True):
    """One open request.

    Attributes:
        state: "running", "waiting" or "retracted" (it waits after a retraction).
        num_pages: pages of the first pool that the request uses, shared ones included.
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
    """The open requests and sessions. running and waiting: in the order of the batch and of the queue."""

    running: list[RequestInfo]
    waiting: list[RequestInfo]
    sessions: list[SessionInfo]
    num_sessions: int


class PageRun(Part, frozen=True):
    """Consecutive pages with one holder.

    Attributes:
        kind: the term of the pool's accounting: "available", "evictable", "protected", "session_held", "uncached" or
            "quarantined".
        holder: id of the request or session that holds the pages; "" for another holder.
    """

    num_pages: int
    kind: str
    holder: str


class PageMap(Part, frozen=True):
    """The holders of pages, in the order of the page numbers. total_pages: pages of the whole pool."""

    total_pages: int
    runs: list[PageRun]
