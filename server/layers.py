"""What every request passes, as plain ASGI: its id and the limit of its body. They never swallow a disconnect."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebbtide.errors import Rejected

log = logging.getLogger(__name__)

REQUEST_ID = "ebbtide.request_id"  # the key in the ASGI scope
GOOD_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)


class RequestIds:
    """Puts an id into the scope and on every response: the client's if it is well formed, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id", "")
        request_id = wanted if GOOD_ID.fullmatch(wanted) else secrets.token_hex(16)
        scope[REQUEST_ID] = request_id

        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        started = time.monotonic()
        await self._app(scope, receive, send_with_id)
        what = (request_id, scope["method"], scope["path"], status, time.monotonic() - started)
        log.debug("request %s: %s %s was answered with %d within %.3f s", *what, extra={"rid": request_id})


class BodyLimit:
    """Refuses a body of more than ``max_bytes``: by its declared length, else as soon as it has grown too large."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
