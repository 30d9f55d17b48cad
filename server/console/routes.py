"""GET /console/events, the stream of snapshots, and GET /console/pages, the map of a pool's pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ebbtide import __version__
from ebbtide.errors import Rejected
from ebbtide.messages import PageMapReq, PageRun

from ..http.auth import Caller, caller_of, require_control
from ..http.streaming import EVENT_HEADERS, as_json, cancel_on_disconnect
from ..state import AppState
from .feed import ConsoleFeed
from .snapshot import view

PAGES_PER_CALL = 4096


def add_console_routes(app: Starlette, state: AppState) -> None:
    """Add the routes to ``app``, but not to /openapi.json: their format is internal and changes with the page."""
    routes = ConsoleRoutes(state, ConsoleFeed(state))
    app.add_route("/console/events", routes.events, methods=["GET"], include_in_schema=False)
    app.add_route("/console/pages", routes.pages, methods=["GET"], include_in_schema=False)


@dataclass(frozen=True, slots=True)
class ConsoleRoutes:
    """The routes, the state that they read, and the feed that takes the snapshots."""

    state: AppState
    feed: ConsoleFeed

    async def events(self, request: Request) -> Response:
        """Stream snapshots as server-sent events: ``hello`` once, then ``snapshot`` and ``pressure``."""
        if request.method == "HEAD":
            return Response(headers={"content-type": "text/event-stream; charset=utf-8"})
        return _Snapshots(self.state, self.feed, caller_of(request))

    async def pages(self, request: Request) -> Response:
        """Show the owners of up to 4,096 pages of the pool ``?pool=``, starting at the page number ``?first=``."""
        await require_control(request)
        pool, first = request.query_params.get("pool", "full"), _page_number(request.query_params)
        reply = await self.state.control.ask(lambda call: PageMapReq(call, pool, first, PAGES_PER_CALL))
        shown = reply.page_map
        assert shown is not None, "the reply to a PageMapReq has a page map"
        num_shown = sum(run.num_pages for run in shown.runs)
        return JSONResponse(
            {
                "pool": pool,
                "first": first,
                "num_pages": num_shown,
                "total_pages": shown.total_pages,
                "runs": [_run(run) for run in shown.runs],
            },
            headers={"cache-control": "no-store"},
        )


class _Snapshots(Response):
    """The stream of one viewer. It ends when the viewer disconnects or the server stops."""

    def __init__(self, state: AppState, feed: ConsoleFeed, caller: Caller) -> None:
        super().__init__()
        self._state = state
        self._feed = feed
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._feed.viewer():
            await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_HEADERS)})
            await cancel_on_disconnect(self._stream(send), receive)

    async def _stream(self, send: Send) -> None:
        body = _event("hello", hello(self._state, self._caller))
        revision, number = -1, self._feed.last.number
        while not self._feed.is_over:
            log = self._state.pressure
            if log.revision != revision:
                body += _event("pressure", {"num_total": log.num_seen, "events": log.changed_since(revision)})
                revision = log.revision
            await send({"type": "http.response.body", "body": body, "more_body": True})
            snapshot = await self._feed.next(number)
            number = snapshot.number
            body = _event("snapshot", view(snapshot, self._caller))
        await send({"type": "http.response.body", "body": body + _event("end", {}), "more_body": False})


def hello(state: AppState, caller: Caller) -> dict[str, Any]:
    """Return the data that does not change while the stream is open."""
    info, access = state.info, state.access
    return {
        "version": __version__,
        "model": state.model_name,
        "device": info.device,
        "dtype": info.dtype,
        "context_length": info.context_length,
        "max_running_requests": info.num_rows,
        "pools": {pool.name: {"num_pages": pool.num_pages, "page_size": pool.page_size} for pool in info.pools},
        "host_pages": info.num_host_pages,
        "page_size": info.page_size,
        "key_required": access.keys.required,
        "has_key": bool(caller.owner),
        "may_control": caller.may_control,
    }


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + as_json(data) + b"\n\n"


def _run(run: PageRun) -> list[int | str]:
    return [run.num_pages, run.kind, run.holder]


def _page_number(query: QueryParams) -> int:
    text = query.get("first", "0")
    if not (text.isascii() and text.isdecimal()) or len(text) > 12:
        raise Rejected(f"'first' must be the number of a page, not {text[:50]!r}.", param="first")
    return int(text)
