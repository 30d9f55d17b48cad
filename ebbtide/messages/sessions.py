"""Messages that open, close and list sessions, and the reply to them."""

from __future__ import annotations

import msgspec

from .base import Message, Part


class OpenSessionReq(Message, frozen=True):
    """Front → scheduler: open a session. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        streaming: keep the KV of the session's turns between requests.
        timeout_s: seconds without a turn until the session is closed; None for the server's default.
    """

    call: str
    session_id: str
    owner: str = ""
    streaming: bool = False
    timeout_s: float | None = None


class CloseSessionReq(Message, frozen=True):
    """Front → scheduler: close a session; a running turn finishes detached from it. The answer is a ``Reply``."""

    call: str
    session_id: str
    owner: str = ""


class ListSessionsReq(Message, frozen=True):
    """Front → scheduler: list one session, or all of an owner's if ``session_id`` is "". The answer is a ``Reply``."""

    call: str
    owner: str = ""
    session_id: str = ""


class SessionInfo(Part, frozen=True):
    """One open session.

    Attributes:
        state: "running" (a turn runs or waits), "warm" (KV is held) or "cold" (no KV is held).
        num_tokens: tokens of all committed turns.
        held_tokens: tokens whose KV is held for the session, in whole pages.
    """

    session_id: str
    streaming: bool
    state: str
    num_turns: int
    num_tokens: int
    held_tokens: int
    idle_s: float
    timeout_s: float


class Reply(Message, frozen=True):
    """Scheduler → front: the answer to one call.

    Attributes:
        status: HTTP status; if it is an error, ``code`` and ``message`` are set.
    """

    call: str
    status: int = 200
    code: str | None = None
    message: str = ""
    sessions: list[SessionInfo] = msgspec.field(default_factory=list)
