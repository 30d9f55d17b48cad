"""Session routes: open, list, show and close, also in SGLang's format. The scheduler owns the sessions."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected
from ebbtide.messages import CloseSessionReq, ListSessionsReq, OpenSessionReq, Reply, SessionInfo

from ..api.neutral import read_as
from ..http.auth import owner_of
from ..state import AppState

SESSION_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
Timeout = Annotated[float, Meta(gt=0)]


class NewSession(msgspec.Struct):
    """The body of POST /v1/sessions."""

    session_id: str | None = None
    streaming: bool | None = None
    timeout: Timeout | None = None  # idle seconds until the session is closed


class OpenSession(msgspec.Struct):
    """The body of POST /open_session, SGLang's format."""

    capacity_of_str_len: Annotated[int, Meta(ge=0, le=2**63 - 1)]  # required by SGLang, ignored here
    session_id: str | None = None
    streaming: bool | None = None
    timeout: Timeout | None = None


class CloseSession(msgspec.Struct):
    """The body of POST /close_session."""

    session_id: str


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """The session routes. A client sees only the sessions of its own API key."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Open a session. It is a streaming session unless the request sets ``streaming`` to false."""
        body = await read_as(request, NewSession, optional=True)
        reply = await self._open(request, body, streaming=body.streaming is not False)
        return JSONResponse(session_json(reply.sessions[0]))

    async def list_sessions(self, request: Request) -> Response:
        """List the open sessions of the caller's key."""
        owner = owner_of(request)
        reply = await self.state.control.ask(lambda call: ListSessionsReq(call, owner))
        return JSONResponse({"object": "list", "data": [session_json(session) for session in reply.sessions]})

    async def one(self, request: Request) -> Response:
        """Show an open session."""
        owner, session_id = owner_of(request), request.path_params["session_id"]
        _check_id(session_id)
        reply = await self.state.control.ask(lambda call: ListSessionsReq(call, owner, session_id))
        return JSONResponse(session_json(reply.sessions[0]))

    async def close(self, request: Request) -> Response:
        """Close a session. The call succeeds even if the session does not exist."""
        session_id = request.path_params["session_id"]
        await self._close(request, session_id)
        return JSONResponse({"id": session_id, "object": "session", "deleted": True})

    async def open_as_sglang(self, request: Request) -> Response:
        """Open a session in SGLang's format. The response is the session's id, as a JSON string."""
        body = await read_as(request, OpenSession)
        reply = await self._open(request, body, streaming=bool(body.streaming))
        return JSONResponse(reply.sessions[0].session_id)

    async def close_as_sglang(self, request: Request) -> Response:
        """Close a session in SGLang's format."""
        body = await read_as(request, CloseSession)
        await self._close(request, body.session_id)
        return Response()

    async def _open(self, request: Request, body: NewSession | OpenSession, *, streaming: bool) -> Reply:
        self.state.liveness.require_ready()
        session_id = f"session-{secrets.token_hex(12)}" if body.session_id is None else body.session_id
        _check_id(session_id)
        owner = owner_of(request)
        return await self.state.control.ask(
            lambda call: OpenSessionReq(call, session_id, owner, streaming, timeout_s=body.timeout)
        )

    async def _close(self, request: Request, session_id: str) -> None:
        owner = owner_of(request)
        _check_id(session_id)
        await self.state.control.ask(lambda call: CloseSessionReq(call, session_id, owner))


def session_json(session: SessionInfo) -> dict[str, Any]:
    """Return a session as the JSON object that clients receive."""
    return {
        "id": session.session_id,
        "object": "session",
        "state": session.state,
        "streaming": session.streaming,
        "num_turns": session.num_turns,
        "num_tokens": session.num_tokens,
        "held_tokens": session.held_tokens,
        "held_tokens_by_pool": session.held_in_pools,
        "idle_s": round(session.idle_s, 3),
        "timeout_s": session.timeout_s,
    }


def _check_id(session_id: str) -> None:
    # Clients remove the path segments "." and ".." from URLs, so such a session could not be closed.
    if not SESSION_ID.fullmatch(session_id) or session_id in (".", ".."):
        raise Rejected(
            "'session_id' must be 1 to 128 letters, digits, dots, underscores or hyphens, and neither '.' nor '..'.",
            param="session_id",
        )
