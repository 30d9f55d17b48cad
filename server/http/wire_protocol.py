"""Below the application: how long a request may take to arrive, how large its head may be, how many connections there
are. What is refused here is refused in the same words as everything else.
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
MIN_BYTES_PER_S = 16 * 1024  # a request that comes at this rate may take longer than the limit
LINGER_S = 1.0  # in which a refused client can read why, before its unread bytes reset the connection
OVERFLOW_CONNECTIONS = 128  # connections over the limit that still get an answer


@dataclass(frozen=True, slots=True)
class WireLimits:
    """max_connections: that may be open at once. receive_timeout_s: from a request's first byte to its last."""

    max_connections: int = 4096
    receive_timeout_s: float = 60.0


class WireProtocol(HttpToolsProtocol):
    """One connection: uvicorn's parser with our limits and our words."""

    def __init__(self, *, limits: WireLimits = WireLimits(), **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._over_limit = False  # it came when there were enough
        self._refused = False
        self._no_request_yet = True  # nothing of a first request has come
        self._receiving = False  # a request has begun to come and has not come whole,
        self._has_head = False  # but for its head
        self._started_s = 0.0
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """uvicorn's; the time in which the first request must come begins."""
        super().connection_made(transport)
        self._over_limit = len(self.connections) > self._limits.max_connections
        if len(self.connections) > self._limits.max_connections + OVERFLOW_CONNECTIONS:
            transport.abort()
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn's."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client; those after a refusal are nobody's."""
        if self._refused:
            return
        self._num_bytes += len(data)
        super().data_received(data)
        if self._receiving and not self._has_head and self._num_bytes > MAX_HEAD_BYTES:
            self._refuse(_large_head())

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._no_request_yet = False
        self._start_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is here: the request is refused, or it goes to the application."""
        self._has_head = True
        if self._refused:
            return
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > MAX_HEAD_BYTES:
            self._refuse(_large_head())
        elif len(self.headers) > MAX_HEADERS:
            self._refuse(Rejected(f"The request has more than {MAX_HEADERS} headers.", status=431))
        elif self._over_limit and self.url.partition(b"?")[0].decode("latin-1") not in PUBLIC_PATHS:
            text = f"The server has {self._limits.max_connections} connections (--max-connections)."
            full = {"status": 503, "kind": "overloaded_error", "code": "too_many_connections", "retry_after_s": 1}
            self._refuse(Rejected(text, **full))  # type: ignore[arg-type]
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body, which is the application's unless the head was refused."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request has come whole."""
        self._stop_timer()
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP: where the next request begins is anybody's guess."""
        if not self._refused:
            self._refuse(Rejected(f"This is not an HTTP request that the server can read: {msg}"))

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn advises to install a library. There are no WebSockets here: the request is answered without one."""

    def _start_timer(self) -> None:
        """A request begins to come, or is waited for."""
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
        """The time is over, unless so many bytes have come that it may take longer, or we ourselves do not read."""
        allowed_s = self._limits.receive_timeout_s + self._num_bytes / MIN_BYTES_PER_S
        left_s = self._started_s + allowed_s - self.loop.time()
        if self.flow.read_paused:
            left_s = max(left_s, self._limits.receive_timeout_s)
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_deadline)
        elif self._no_request_yet or (self._has_head and self.cycle.response_started):
            self.transport.close()  # nothing was asked, or it was answered without its body
        else:
            limit_s = self._limits.receive_timeout_s
            text = f"The request did not arrive whole within {limit_s:g} s (--receive-timeout)."
            self._refuse(Rejected(text, status=408, kind="timeout_error", code="request_timeout"))

    def _refuse(self, error: Rejected) -> None:
        """Answer and close; what the client still sends is dropped."""
        before = self.cycle is not None and not self.cycle.response_complete and not self._has_head
        self._refused = True
        self._stop_timer()
        if before:
            self.transport.close()  # an earlier request of this connection has not been answered: no word would fit
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
    return Rejected(f"The request's head is larger than {MAX_HEAD_BYTES} bytes.", status=431)
