"""Responses to HTTP/1.0 clients, which do not know chunked bodies: a body without a length ends with the connection."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class PlainBodies:
    """Wraps ``app`` for the one request of ``cycle``, uvicorn's response writer, which chunks unless it is told not to.

    uvicorn checks each body against a declared length; for a body without one, each part is declared as it is sent.
    """

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._has_length = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not self._has_length:
                    self._cycle.chunked_encoding = False
            elif not self._has_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_plain)
