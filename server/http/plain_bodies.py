"""Responses to HTTP/1.0 clients, which cannot read chunked bodies: the end of the connection ends a body without a
length.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class PlainBodies:
    """Wraps ``app`` for the single request of ``cycle``, uvicorn's response writer, which chunks a body by default.

    uvicorn checks a body against its declared length. For a body without a length, the length of each part is declared
    when the part is sent.
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
