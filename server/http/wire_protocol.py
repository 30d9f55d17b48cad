"""Limits below the ASGI application: size and arrival time of a request, pipelining, number of connections.

Refusals contain the error object of the HTTP API. The module depends on internals of uvicorn: callbacks and attributes
of HttpToolsProtocol, its flow control and its request cycle. tests/server/http/test_wire_protocol.py lists them, and
pyproject.toml limits uvicorn to the tested minor version.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ebbtide.errors import Rejected

from . import wire_refusal
from .arriving_request import MAX_HEAD_BYTES, ArrivingRequest
from .auth import PUBLIC_PATHS
from .early_answers import EarlyAnswers
from .half_closed import PeerProbe, StreamMark
from .head_rules import check_head
from .plain_bodies import PlainBodies
from .upgrade_offers import head_without_offer
from .wire_refusal import MAX_HEADERS, refusal_bytes

LINGER_S = (
    1.0  # seconds in which a refused client can read the reply; closing with unread input would reset the connection
)
OVERFLOW_CONNECTIONS = 128  # number of connections above the limit that get a 503 reply; further connections are closed
MAX_PIPELINED = 32  # maximum number of requests of one connection that are waiting until earlier requests are answered
PIECE_BYTES = 16 * 1024  # input is parsed and counted in pieces of this size


@dataclass(frozen=True, slots=True)
class WireLimits:
    """The limits for connections."""

    max_connections: int = 4096
    receive_timeout_s: float = 60.0  # seconds from the first byte of a request to its last byte


class WireProtocol(HttpToolsProtocol):
    """One connection: uvicorn's protocol class with ebbtide's limits and error replies.

    At most one request is arriving (``_arriving``). Earlier requests wait for their answers in order; the first of them
    is ``_running``. A refusal ends the input of the connection and is sent after the answers to earlier requests.
    """

    def __init__(self, *, limits: WireLimits = WireLimits(), **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._over_limit = False  # True if the connection was opened above max_connections
        self._ignores_input = False  # True after a refusal, and after the client has closed its sending side
        self._arriving = ArrivingRequest(0.0, is_complete=True)
        self._arriving_cycle: RequestResponseCycle | None = None  # set when the head is complete
        self._running: RequestResponseCycle | None = None  # the request that the application is answering
        self._refusal: Rejected | None = None  # a refusal that is sent after the answers to earlier requests
        self._parses_again = False  # True while a head is parsed again without its upgrade headers
        self._mark: StreamMark | None = None  # detects whether the running request's response is an event stream
        self._probe: PeerProbe | None = None  # set after the client has closed its sending side
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Check the number of connections, and start the receive timeout of the first request."""
        super().connection_made(transport)
        self._over_limit = len(self.connections) > self._limits.max_connections
        if len(self.connections) > self._limits.max_connections + OVERFLOW_CONNECTIONS:
            transport.abort()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of the closed connection, and notify the application."""
        self._stop_timer()
        if self._probe is not None:
            self._probe.stop()
        if self._running is not None:
            _disconnect(self._running)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client; ignore them after a refusal."""
        view = memoryview(data)
        for start in range(0, len(data), PIECE_BYTES):
            self._receive(view[start : start + PIECE_BYTES])

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle that the client has closed its sending side. Returns True if the connection stays open for answers."""
        self._drop_input()
        if self._arriving.is_incomplete:
            self._cancel_arriving()
        if self._running is None or self._mark is None or self.scheme == "https":  # TLS cannot close only one direction
            return False
        self._probe = PeerProbe(self.transport, self.loop)
        self._probe.watch(self._running, self._mark)
        return True

    def on_message_begin(self) -> None:
        """Start the receive timeout at the first byte of a request."""
        if self._ignores_input:
            return
        if not self._parses_again:
            self._unset_keepalive_if_required()
            self._await_request()
            self._arriving.begin()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header field.

        Trailers are dropped, because they must not change a request that has already been checked.
        """
        if not self._arriving.has_head and not self._ignores_input:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the complete head. Refuse the request or pass it to the application."""
        if self._ignores_input or self.parser.should_upgrade():
            return
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        self._arriving.end_head(size)
        refusal = self._check_head(size)
        if refusal is not None:
            self._refuse(refusal)
            return
        if self.parser.get_http_version() < "1.1":
            self.expect_100_continue = False  # RFC 9110 section 10.1.1
        super().on_headers_complete()
        self._arriving_cycle = self.cycle
        self.flow.resume_reading()  # uvicorn pauses reading for a pipelined request, and would not notice a disconnect

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the application unless the request was refused."""
        self._arriving.add_body(len(body))
        if not self._ignores_input:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the receive timeout: the request is complete."""
        if self._ignores_input or self.parser.should_upgrade():
            return
        self._stop_timer()
        self._arriving.is_complete = True
        super().on_message_complete()
        self._arriving_cycle = None

    def on_response_complete(self) -> None:
        """Start the next pipelined request. If there is none, send a pending refusal or close the connection."""
        self._running = None
        if not self.pipeline and self._refusal is not None:
            self._send_refusal(self._refusal)
        elif not self.pipeline and self._probe is not None:
            self.transport.close()
        elif not self.pipeline and self._ignores_input:
            self._linger()
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running, self._mark = cycle, StreamMark(app)
        app = self._mark
        if self._probe is not None:
            self._probe.watch(cycle, self._mark)
        if cycle.scope["http_version"] < "1.1":
            cycle.keep_alive = False
            app = PlainBodies(app, cycle)
        app = EarlyAnswers(app, cycle, self._drop_input)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]  # starlette and uvicorn type scopes differently

    def _drop_input(self) -> None:
        """Ignore all further input of the connection, and stop the receive timeout."""
        self._ignores_input = True
        self._stop_timer()

    def _receive(self, piece: memoryview) -> None:
        """Parse one piece of input, in several steps if it contains upgrade headers. Check the limit for framing."""
        self._arriving.begin_piece()
        rest: memoryview | None = piece
        while rest is not None and not self._ignores_input:
            rest = self._parse(rest)
        self._arriving.end_piece(len(piece))
        if not self._ignores_input and self._arriving.is_incomplete and self._arriving.has_large_framing:
            self._refuse(wire_refusal.large_framing() if self._arriving.has_head else wire_refusal.large_head())

    def _parse(self, data: memoryview | bytes) -> memoryview | None:
        """Parse ``data``. Return the input after a head with an upgrade header; None if all input was parsed."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._ignore_upgrade()
            return memoryview(data)[offer.args[0] :]
        except httptools.HttpParserError:
            if not self._ignores_input:
                self._refuse(wire_refusal.not_http("Invalid HTTP request received."))
        return None

    def _ignore_upgrade(self) -> None:
        """Parse the head again without its upgrade headers. Refuse CONNECT, because the data after it is not HTTP."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(wire_refusal.not_http("The method CONNECT is not supported: this server is not a proxy."))
            return
        head = head_without_offer(method, self.url, self.parser.get_http_version(), self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn, for pipelining
        self._parses_again = True
        self._parse(head)
        self._parses_again = False

    def _check_head(self, size: int) -> Rejected | None:
        """Return the error for the arriving request, whose head has ``size`` bytes; None if the head is accepted."""
        if size > MAX_HEAD_BYTES:
            return wire_refusal.large_head()
        if len(self.headers) > MAX_HEADERS:
            return wire_refusal.many_headers()
        if len(self.pipeline) >= MAX_PIPELINED:
            return wire_refusal.many_pipelined(MAX_PIPELINED)
        if self._over_limit and self.url.partition(b"?")[0].decode("latin-1") not in PUBLIC_PATHS:
            return wire_refusal.many_connections(self._limits.max_connections)
        return check_head(self.parser.get_http_version(), self.headers)

    def _await_request(self) -> None:
        """Start the receive timeout of a request that has begun to arrive or that is expected."""
        self._stop_timer()
        self._arriving, self._arriving_cycle = ArrivingRequest(self.loop.time()), None
        self._timer = self.loop.call_later(self._limits.receive_timeout_s, self._check_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_deadline(self) -> None:
        """Refuse the request if its deadline has passed. While the server applies backpressure, extend the deadline."""
        left_s = self._arriving.deadline_s(self._limits.receive_timeout_s) - self.loop.time()
        if self.flow.read_paused:
            left_s = max(left_s, self._limits.receive_timeout_s)
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_deadline)
        elif not self._arriving.has_begun:
            self.transport.close()  # the client sent no request
        else:
            self._refuse(wire_refusal.late(self._limits.receive_timeout_s))

    def _refuse(self, error: Rejected) -> None:
        """Send ``error`` after the answers to earlier requests, then close the connection. Drop further input."""
        self._drop_input()
        is_answered = self._cancel_arriving()
        if is_answered:
            self._linger()
        elif self._running is None:
            self._send_refusal(error)
        else:
            self._refusal = error

    def _cancel_arriving(self) -> bool:
        """Notify the application that the rest of the arriving request will not arrive.

        Returns True if the response to the request has already started.
        """
        cycle, self._arriving_cycle = self._arriving_cycle, None
        if cycle is None:
            return False
        if cycle.response_started:
            return True
        _disconnect(cycle)
        if cycle is self._running:
            self._running = None
        else:
            self.pipeline.popleft()  # uvicorn appends new requests on the left
        return False

    def _send_refusal(self, error: Rejected) -> None:
        self.transport.write(refusal_bytes(error))
        self._linger()

    def _linger(self) -> None:
        """Close the connection after ``LINGER_S`` seconds, and its sending side now if no request is being answered."""
        if self._running is None and self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Send a disconnect message to the application. Its response will be dropped."""
    cycle.disconnected = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
