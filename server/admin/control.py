"""Admin routes that control the scheduler: flush the prefix cache, pause, continue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ebbtide.errors import Rejected
from ebbtide.messages import ControlReq

from ..api.neutral import read_as
from ..state import AppState
from .abort import aborted

FLUSH_QUERY = {"timeout": "Maximum number of seconds to wait until no request is open; 0 by default."}


class PauseBody(msgspec.Struct, kw_only=True):
    """The body of POST /pause_generation."""

    mode: Literal["in_place", "abort"] | None = None  # keep open requests (the default), or abort them


@dataclass(frozen=True, slots=True)
class ControlRoutes:
    """The routes and the state they use."""

    state: AppState

    async def flush(self, request: Request) -> Response:
        """Flush the prefix cache and the K/V of idle sessions; answer 400 if requests are open.

        ``?timeout=S`` waits up to S seconds until no request is open.
        """
        timeout_s = _seconds(request.query_params.get("timeout", "0"))
        await self.state.control.ask(lambda call: ControlReq(call, "flush", timeout_s))
        return PlainTextResponse("The cache was flushed.\n")

    async def pause(self, request: Request) -> Response:
        """Pause generation: run no further steps, and refuse new requests with 503. Open requests keep their memory."""
        body = await read_as(request, PauseBody, optional=True)
        await self.state.control.ask(lambda call: ControlReq(call, "pause"))
        self.state.liveness.pause()
        if body.mode == "abort":
            self.state.manager.abort(None, aborted(), owner=None)
        return JSONResponse({"status": "ok", "message": "Generation is paused."})

    async def resume(self, _: Request) -> Response:
        """Resume generation after ``/pause_generation``. The call has no effect if the server is not paused."""
        await self.state.control.ask(lambda call: ControlReq(call, "continue"))
        self.state.liveness.resume()
        return JSONResponse({"status": "ok", "message": "Generation continues."})


def _seconds(text: str) -> float:
    """Parse a number of seconds in a query. Raises Rejected if the value is negative, infinite or not a number."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Rejected(f"'timeout' must be a number of seconds, 0 or more, not {text[:50]!r}.", param="timeout")
    return seconds
