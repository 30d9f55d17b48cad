"""Responses to HTTP/1.0 clients, which cannot read chunked bodies: a body without a length ends with the connection."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class PlainBodies:
    """Wraps ``app`` for the single request of ``cycle``, which is uvicorn's response writer.

    By default, uvicorn sends a body without a length in chunks, and checks other bodies against their declared length.
    For a body without a length, this class turns chunking off and declares the length of each part when it is sent.
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
