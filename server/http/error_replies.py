"""HTTP error responses, in OpenAI's format unless the application sets another format for a path."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ebbtide.errors import Rejected

from .middleware import REQUEST_ID

if TYPE_CHECKING:
    from fastapi import FastAPI  # takes longer to import than the rest of this package

log = logging.getLogger(__name__)

ErrorFormats = Mapping[
    str, Callable[[Rejected], dict[str, Any]]
]  # path prefix -> function that returns the body of an error below that path
ERROR_FORMATS = "ebbtide.error_formats"  # key of the ErrorFormats in the ASGI scope
ERROR_CODE = "ebbtide.error_code"  # key of the error code of an error response in the ASGI scope


def envelope(error: Rejected) -> dict[str, Any]:
    """Return OpenAI's error object."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


class SetErrorFormats:
    """Middleware that puts ``formats`` into the scope, where ``error_reply`` reads them."""

    def __init__(self, app: ASGIApp, formats: ErrorFormats) -> None:
        self._app = app
        self._formats = formats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ERROR_FORMATS] = self._formats
        await self._app(scope, receive, send)


def error_reply(error: Rejected, scope: Scope) -> JSONResponse:
    """Return the HTTP response to a refused or failed request.

    The path prefix selects the error format (OpenAI's by default).
    """
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.should_retry is not None:
        headers["x-should-retry"] = str(error.should_retry).lower()
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 413 or error.code == "draining":
        headers["Connection"] = "close"  # the rest of the body will not be read, or the server is stopping
    return JSONResponse(_body_for(scope)(error), status_code=error.status, headers=headers)


def _body_for(scope: Scope) -> Callable[[Rejected], dict[str, Any]]:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    formats: ErrorFormats = scope.get(ERROR_FORMATS, {})
    return next((body for start, body in formats.items() if path == start or path.startswith(f"{start}/")), envelope)


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, Rejected)
    request.scope[ERROR_CODE] = error.code
    return error_reply(error, request.scope)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        text, kind = f"There is no route {request.method} {request.url.path[:200]}.", "not_found_error"
    elif error.status_code == 405:
        text, kind = f"{request.method} is not allowed for {request.url.path[:200]}.", "invalid_request_error"
    else:
        text, kind = str(error.detail), "invalid_request_error" if error.status_code < 500 else "server_error"
    reply = error_reply(Rejected(text, status=error.status_code, kind=kind), request.scope)
    reply.headers.update(error.headers or {})
    return reply


async def _bug(request: Request, error: Exception) -> Response:
    request_id = request.scope.get(REQUEST_ID, "")
    log.error("request %s failed", request_id, exc_info=error, extra={"rid": request_id})
    failure = Rejected("The server failed to answer this request.", status=500, kind="server_error")
    reply = error_reply(failure, request.scope)
    reply.headers["Connection"] = "close"  # an unknown part of the request body has not been read
    return reply


async def _disconnected(_: Request, __: Exception) -> Response:
    return Response(status_code=400)  # this reply is never sent: the client disconnected while sending its body


class SuppressLoggedErrors:
    """Suppresses the exceptions of ``app``, which has already logged and answered them: uvicorn would log them again.

    If the response is incomplete, uvicorn still closes the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Exception):  # the outermost frame of a request
            await self._app(scope, receive, send)


def install_error_replies(app: FastAPI) -> None:
    """Register exception handlers that convert every exception in ``app`` to an error response."""
    app.add_exception_handler(Rejected, _rejected)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(Exception, _bug)
