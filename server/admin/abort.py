"""POST /abort_request: aborts requests by id.

It is needed behind proxies that keep the connection to the server open when the client disconnects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected

from ..api.neutral import read_as
from ..http.auth import caller_of, require_control
from ..state import AppState

MAX_IDS = 1024
ABORTED = 499  # the status that nginx uses for a closed client request; clients do not retry it


class AbortBody(msgspec.Struct, kw_only=True):
    """The body of POST /abort_request."""

    rid: str | Annotated[list[str], Meta(max_length=MAX_IDS)] | None = None
    request_id: str | Annotated[list[str], Meta(max_length=MAX_IDS)] | None = None  # an alias of rid
    abort_all: bool | None = None


@dataclass(frozen=True, slots=True)
class AbortRoute:
    """The route and the application state that it uses."""

    state: AppState

    async def abort(self, request: Request) -> Response:
        """Abort the open requests with the given ids, or all open requests. The status is 200 even if none matches.

        An API key may abort only its own requests; the admin key may abort the requests of all keys. ``abort_all``
        requires admin rights.
        """
        body = await read_as(request, AbortBody)
        caller = caller_of(request)
        names = [*_listed(body.rid), *_listed(body.request_id)]
        if not names and not body.abort_all:
            raise Rejected("Set 'rid' to the request's id, or 'abort_all' to true.", param="rid")
        manager, error = self.state.manager, aborted()
        if body.abort_all:
            await require_control(request)
            return JSONResponse({"num_aborted": manager.abort(None, error, owner=None)})
        owner = None if caller.is_admin else caller.owner
        return JSONResponse({"num_aborted": sum(manager.abort(name, error, owner=owner) for name in names)})


def aborted() -> Rejected:
    """Return the error that the client of an aborted request receives."""
    text = "The request was aborted through /abort_request."
    return Rejected(text, status=ABORTED, kind="aborted_error", code="aborted", should_retry=False)


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else names or []
