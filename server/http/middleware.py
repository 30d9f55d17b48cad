"""ASGI middleware for every request: assigns the request id, and limits the body size.

The middleware forwards disconnect messages.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.errors import Rejected

log = logging.getLogger(__name__)

ID_HEADERS = ("x-request-id", "request-id")  # the headers that OpenAI's and Anthropic's clients read
REQUEST_ID = "ebbtide.request_id"  # key of the request id in the ASGI scope
ID_FROM_CLIENT = "ebbtide.named_by_header"  # key of a bool, which is True if the request header has a valid id
VALID_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
TRACE = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)


class RequestIds:
    """Adds a request id to the ASGI scope and the response headers: the client's id if it is valid, else a new id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = Headers(scope=scope).get("x-request-id", "")
        scope[ID_FROM_CLIENT] = is_valid_id(wanted)
        scope[REQUEST_ID] = wanted if scope[ID_FROM_CLIENT] else secrets.token_hex(16)
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name in ID_HEADERS:
                    headers[name] = scope[REQUEST_ID]
                headers["openai-processing-ms"] = str(round((time.monotonic() - started) * 1000))
            await send(message)

        await self._app(scope, receive, send_with_id)
        request_id = scope[REQUEST_ID]
        what = (request_id, _trace(scope), scope["method"], scope["path"], status, time.monotonic() - started)
        log.debug("request %s%s: %s %s was answered with %d in %.3f s", *what, extra={"rid": request_id})


def is_valid_id(name: str) -> bool:
    """Return True if a request id that a client sent is safe in a header and in the log."""
    return VALID_ID.fullmatch(name) is not None


def assign_client_ids(scope: Scope, wanted: Iterable[str | None]) -> tuple[str, ...]:
    """Return all ids by which the client may refer to this request: the id of the response and the valid ids in
    ``wanted``.

    wanted: the ids in the request body. If the request header has no valid id, the first valid id in ``wanted`` becomes
        the id of the response.
    """
    named = [name for name in wanted if name is not None and is_valid_id(name)]
    if named and not scope[ID_FROM_CLIENT]:
        scope[REQUEST_ID] = named[0]
    return (scope[REQUEST_ID], *named)


def _trace(scope: Scope) -> str:
    """Return a part of a log line that contains the W3C trace id of a request; "" if the request has no trace id."""
    found = TRACE.fullmatch(Headers(scope=scope).get("traceparent", ""))
    return f" of trace {found['trace']}" if found else ""


class BodyLimit:
    """Rejects a body of more than ``max_bytes`` bytes, by its declared length or as soon as more bytes have arrived."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "")
        too_large = declared.isdecimal() and int(declared[:20]) > self._max_bytes
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            if too_large:
                raise self._refusal()
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._refusal()
            return message

        await self._app(scope, receive_limited, send)

    def _refusal(self) -> Rejected:
        return Rejected(
            f"The request body is larger than {self._max_bytes} bytes.", status=413, code="request_too_large"
        )
