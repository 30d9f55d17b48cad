"""Messages that open, close and list sessions, and the reply to every call."""

from __future__ import annotations

import msgspec

from .base import Message
from .inspection import Inspection, PageMap, SessionInfo


class OpenSessionReq(Message, frozen=True):
    """Front → scheduler: open a session. The answer is a ``Reply``.

    Attributes:
        call: id that the reply repeats.
        streaming: True to keep the KV of the session's turns between requests.
        timeout_s: seconds without a turn until the session is closed; None for the server's default.
    """

    call: str
    session_id: str
    owner: str = ""
    streaming: bool = False
    timeout_s: float | None = None


class CloseSessionReq(Message, frozen=True):
    """Front → scheduler: close a session. A running turn continues but is not saved. The answer is a ``Reply``."""

    call: str
    session_id: str
    owner: str = ""


class ListSessionsReq(Message, frozen=True):
    """Front → scheduler: list one session, or all sessions of the owner if ``session_id`` is "".

    The answer is a ``Reply``.
    """

    call: str
    owner: str = ""
    session_id: str = ""


class Reply(Message, frozen=True):
    """Scheduler → front: the answer to one call.

    Attributes:
        call: id of the call.
        status: HTTP status; for an error status, ``code`` and ``message`` are set.
        inspection: set only in the reply to an ``InspectReq``.
        page_map: set only in the reply to a ``PageMapReq``.
    """

    call: str
    status: int = 200
    code: str | None = None
    message: str = ""
    sessions: list[SessionInfo] = msgspec.field(default_factory=list)
    inspection: Inspection | None = None
    page_map: PageMap | None = None
