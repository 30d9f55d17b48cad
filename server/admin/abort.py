"""POST /abort_request: end requests by the ids that their clients know. For proxies that hold the connections."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected

from ..http.auth import caller_of, require_control
from ..http.strict_json import convert, read_object
from ..state import AppState

ABORTED = 499  # the number that proxies use for a request whose client gave it up; nobody repeats it


class AbortBody(msgspec.Struct, kw_only=True):
    """POST /abort_request. rid, request_id: one id or several, all the same. abort_all: whatever is open."""

    rid: str | list[str] | None = None
    request_id: str | list[str] | None = None
    abort_all: bool | None = None


@dataclass(frozen=True, slots=True)
class AbortRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def abort(self, request: Request) -> Response:
        """End every open request with an id, or all. 200 also when there was none.

        By id a sender ends requests of its own key only, the admin anybody's. All at once is for who may control.
        """
        body = convert(await read_object(request), AbortBody)
        caller = caller_of(request)
        names = [*_listed(body.rid), *_listed(body.request_id)]
        if not names and not body.abort_all:
            raise Rejected("Give the request's id as 'rid', or 'abort_all': true.", param="rid")
        manager, error = self.state.manager, aborted()
        if body.abort_all:
            await require_control(request)
            return JSONResponse({"num_aborted": manager.abort(None, error, owner=None)})
        owner = None if caller.is_admin else caller.owner
        return JSONResponse({"num_aborted": sum(manager.abort(name, error, owner=owner) for name in names)})


def aborted() -> Rejected:
    """What the client of an aborted request gets."""
    text = "The request was aborted through /abort_request."
    return Rejected(text, status=ABORTED, kind="aborted_error", code="aborted", should_retry=False)


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else names or []
