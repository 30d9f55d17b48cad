"""What an operator does to the whole server: flush the prefix cache, pause, continue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ebbtide.errors import Rejected
from ebbtide.messages import ControlReq

from ..http.strict_json import convert, read_optional_object
from ..state import AppState
from .abort import aborted

FLUSH_QUERY = {"timeout": "Seconds to wait for a moment without requests; 0 unless told."}


class PauseBody(msgspec.Struct, kw_only=True):
    """POST /pause_generation. mode: what becomes of the requests that are open: they stay, or they are aborted."""

    mode: Literal["in_place", "abort"] | None = None


@dataclass(frozen=True, slots=True)
class ControlRoutes:
    """The routes, bound to what they work with."""

    state: AppState

    async def flush(self, request: Request) -> Response:
        """Empty the prefix cache and drop the K/V of idle sessions; 400 while requests are open.

        ``?timeout=S`` waits up to S seconds for a moment without requests.
        """
        timeout_s = _seconds(request.query_params.get("timeout", "0"))
        await self.state.control.ask(lambda call: ControlReq(call, "flush", timeout_s))
        return PlainTextResponse("The cache was flushed.\n")

    async def pause(self, request: Request) -> Response:
        """Plan no further steps and take no new requests (503, not ready); open requests keep what they have."""
        body = convert(await read_optional_object(request), PauseBody)
        await self.state.control.ask(lambda call: ControlReq(call, "pause"))
        self.state.liveness.pause()
        if body.mode == "abort":
            self.state.manager.abort(None, aborted(), owner=None)
        return JSONResponse({"status": "ok", "message": "Generation is paused."})

    async def resume(self, _: Request) -> Response:
        """Go on where ``/pause_generation`` stopped; nothing happens when it did not."""
        await self.state.control.ask(lambda call: ControlReq(call, "continue"))
        self.state.liveness.resume()
        return JSONResponse({"status": "ok", "message": "Generation goes on."})


def _seconds(text: str) -> float:
    """A number of seconds in a query. Raises Rejected."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise Rejected(f"'timeout' must be seconds, 0 or more, not {text[:50]!r}.", param="timeout")
    return seconds
