"""Handles clients that have closed their sending side: they may still be reading the response, or have disconnected.

Only a write shows the difference, because a disconnected client answers it with a reset. Before a response starts, the
server therefore writes interim responses (RFC 9110 section 15.2), which clients must ignore. It writes comments into an
event stream. HTTP/1.0 has no interim responses, so a response to an HTTP/1.0 client must start soon.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

FIRST_PROBE_S = 0.02  # seconds between the first write and the second write, which detects the reset
MAX_PROBE_INTERVAL_S = 16.0
OLD_CLIENT_S = 1.0  # seconds within which the response to an HTTP/1.0 client must start
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
COMMENT = b":\n\n"
COMMENT_CHUNK = b"%x\r\n%b\r\n" % (len(COMMENT), COMMENT)


class StreamMark:
    """Wraps ``app`` for one request, to detect event streams.

    Attributes:
        is_set: True once an event stream has started.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.is_set = False
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_mark(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.start":
                types = [value for name, value in message.get("headers", ()) if name.lower() == b"content-type"]
                self.is_set = any(value.startswith(b"text/event-stream") for value in types)

        await self._app(scope, receive, send_and_mark)


class PeerProbe:
    """Detects that a client with a half-closed connection has disconnected before its response is complete."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, cycle: RequestResponseCycle, mark: StreamMark) -> None:
        """Start probing until the response of ``cycle`` is complete."""
        self.stop()
        self._cycle, self._mark = cycle, mark
        self._knows_interim = cycle.scope["http_version"] >= "1.1"
        waits_s = 0.0 if self._knows_interim or mark.is_set else OLD_CLIENT_S
        self._timer = self._loop.call_later(waits_s, self._probe, FIRST_PROBE_S)

    def stop(self) -> None:
        """Stop probing. Further calls have no effect."""
        if self._timer is not None:
            self._timer.cancel()

    def _probe(self, next_s: float) -> None:
        if self._cycle.response_complete or self._transport.is_closing():
            return
        if self._mark.is_set:  # the application writes whole events
            self._transport.write(COMMENT_CHUNK if self._cycle.chunked_encoding else COMMENT)
        elif not self._cycle.response_started and not self._knows_interim:
            self._transport.close()
        elif not self._cycle.response_started:
            self._transport.write(INTERIM)
        self._timer = self._loop.call_later(next_s, self._probe, min(2 * next_s, MAX_PROBE_INTERVAL_S))
