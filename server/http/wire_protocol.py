"""Limits below the ASGI application: receive timeout, size of the request head, number of connections.

Refusals use the error object of the HTTP API. The class depends on internals of uvicorn: callbacks and attributes of
HttpToolsProtocol, its flow control and its request cycle. tests/server/http/test_wire_protocol.py lists them, and
pyproject.toml bounds uvicorn to the tested minor version.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ebbtide.errors import Rejected

from .auth import PUBLIC_PATHS
from .error_replies import envelope

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
MIN_BYTES_PER_S = 16 * 1024  # a request that arrives at this rate is exempt from the receive timeout
LINGER_S = 1.0  # time for a refused client to read the reply; closing with unread input would reset the connection
OVERFLOW_CONNECTIONS = 128  # connections above the limit that get a 503 reply; further ones are closed


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Limits of all connections."""

    max_connections: int = 4096
    receive_timeout_s: float = 60.0  # from a request's first byte to its last


class WireProtocol(HttpToolsProtocol):
    """One connection: uvicorn's protocol with our limits and error replies."""

    def __init__(self, *, limits: WireLimits = WireLimits(), **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._over_limit = False  # opened when max_connections was reached
        self._refused = False
        self._no_request_yet = True  # no byte of a first request has arrived
        self._receiving = False  # a request is incomplete, or awaited on a new connection
        self._has_head = False  # the head of the current request is complete
        self._started_s = 0.0
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection and start the timeout of its first request."""
        super().connection_made(transport)
        self._over_limit = len(self.connections) > self._limits.max_connections
        if len(self.connections) > self._limits.max_connections + OVERFLOW_CONNECTIONS:
            transport.abort()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the closed connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client; ignore them after a refusal."""
        if self._refused:
            return
        self._num_bytes += len(data)
        super().data_received(data)
        if self._receiving and not self._has_head and self._num_bytes > MAX_HEAD_BYTES:
            self._refuse(_large_head())

    def on_message_begin(self) -> None:
        """Start the receive timeout at the first byte of a request."""
        self._no_request_yet = False
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the complete head, then refuse the request or pass it to the application."""
        self._has_head = True
        if self._refused:
            return
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > MAX_HEAD_BYTES:
            self._refuse(_large_head())
        elif len(self.headers) > MAX_HEADERS:
            self._refuse(Rejected(f"The request has more than {MAX_HEADERS} headers.", status=431))
        elif self._over_limit and self.url.partition(b"?")[0].decode("latin-1") not in PUBLIC_PATHS:
            text = (
                f"The server has reached its limit of {self._limits.max_connections} connections (--max-connections)."
            )
            full = {"status": 503, "kind": "overloaded_error", "code": "too_many_connections", "retry_after_s": 1}
            self._refuse(Rejected(text, **full))  # type: ignore[arg-type]
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body to the application unless the head was refused."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the receive timeout: the request is complete."""
        self._stop_timer()
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP. The start of the next request is unknown, so the connection closes."""
        if not self._refused:
            self._refuse(Rejected(f"The server cannot parse this HTTP request: {msg}"))

    def _unsupported_upgrade_warning(self) -> None:
        """Suppress uvicorn's advice to install a WebSocket library. The request is answered as plain HTTP."""

    def _start_timer(self) -> None:
        """Start the receive timeout of a request that begins to arrive or is awaited."""
        self._stop_timer()
        self._receiving, self._has_head = True, False
        self._started_s, self._num_bytes = self.loop.time(), 0
        self._timer = self.loop.call_later(self._limits.receive_timeout_s, self._check_deadline)

    def _stop_timer(self) -> None:
        self._receiving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_deadline(self) -> None:
        """Refuse the request if its deadline has passed. Received bytes and backpressure extend it."""
        allowed_s = self._limits.receive_timeout_s + self._num_bytes / MIN_BYTES_PER_S
        left_s = self._started_s + allowed_s - self.loop.time()
        if self.flow.read_paused:
            left_s = max(left_s, self._limits.receive_timeout_s)
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_deadline)
        elif self._no_request_yet or (self._has_head and self.cycle.response_started):
            self.transport.close()  # no request was sent, or it was answered before its body arrived
        else:
            limit_s = self._limits.receive_timeout_s
            text = f"The request was not complete after {limit_s:g} s (--receive-timeout)."
            self._refuse(Rejected(text, status=408, kind="timeout_error", code="request_timeout"))

    def _refuse(self, error: Rejected) -> None:
        """Reply and close the connection; drop further input."""
        earlier_unanswered = self.cycle is not None and not self.cycle.response_complete and not self._has_head
        self._refused = True
        self._stop_timer()
        if earlier_unanswered:
            self.transport.close()  # a reply would be taken for that of the earlier, pipelined request
            return
        body = json.dumps(envelope(error)).encode()
        head = [
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            f"x-request-id: {secrets.token_hex(16)}",
            "connection: close",
        ]
        if error.retry_after_s is not None:
            head.append(f"retry-after: {math.ceil(error.retry_after_s)}")
        self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.loop.call_later(LINGER_S, self.transport.close)


def _large_head() -> Rejected:
    return Rejected(f"The request head is larger than {MAX_HEAD_BYTES} bytes.", status=431)
