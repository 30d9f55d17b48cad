"""Messages that open, close and list sessions, and the reply to a call."""

from __future__ import annotations

import msgspec

from .base import Message, Part


class OpenSessionReq(Message, frozen=True):
    """Front → scheduler: open a session; answered by a ``Reply`` to ``call``. timeout_s: None is the server's."""

    call: str
    session_id: str
    owner: str = ""
    streaming: bool = False
    timeout_s: float | None = None


class CloseSessionReq(Message, frozen=True):
    """Front → scheduler: close a session, its running turn finishes detached; answered by a ``Reply``."""

    call: str
    session_id: str
    owner: str = ""


class ListSessionsReq(Message, frozen=True):
    """Front → scheduler: describe one session, or all of an owner's with ``session_id`` ""; answered by a ``Reply``."""

    call: str
    owner: str = ""
    session_id: str = ""


class SessionInfo(Part, frozen=True):
    """One open session. state: running (a turn runs or waits), warm (its KV is held) or cold.

    num_tokens: of all committed turns. held_tokens: with KV kept for it, in whole pages.
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
    """Scheduler → front: the answer to one call. status is the HTTP status; code and message are set when it failed."""

    call: str
    status: int = 200
    code: str | None = None
    message: str = ""
    sessions: list[SessionInfo] = msgspec.field(default_factory=list)
