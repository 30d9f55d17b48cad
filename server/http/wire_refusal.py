"""Error replies that are sent below the ASGI application."""

from __future__ import annotations

import json
import math
import secrets
from http import HTTPStatus

from ebbtide.errors import Rejected

from .arriving_request import MAX_HEAD_BYTES
from .error_replies import envelope

MAX_HEADERS = 128


def refusal_bytes(error: Rejected) -> bytes:
    """Return the bytes of the complete reply to a request that does not reach the application.

    The connection is closed after the reply.
    """
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
    return "\r\n".join([*head, "", ""]).encode() + body


def not_http(reason: str) -> Rejected:
    """Return the error for a request that is not valid HTTP."""
    return Rejected(f"The server cannot parse this HTTP request: {reason}")


def unknown_transfer_coding() -> Rejected:
    """Return the error for a body with a transfer coding that the server does not implement."""
    return Rejected("The only Transfer-Encoding that the server supports is chunked.", status=501)


def large_head() -> Rejected:
    """Return the error for a request with too many bytes before its body."""
    return Rejected(f"The request head is larger than {MAX_HEAD_BYTES} bytes.", status=431)


def large_framing() -> Rejected:
    """Return the error for a chunked body with too many bytes between and after its chunks."""
    text = (
        f"The head, chunk sizes, chunk extensions and trailers of the request are larger than {MAX_HEAD_BYTES} bytes."
    )
    return Rejected(text, status=431)


def many_headers() -> Rejected:
    """Return the error for a head with too many header fields."""
    return Rejected(f"The request has more than {MAX_HEADERS} headers.", status=431)


def many_connections(limit: int) -> Rejected:
    """Return the error for a request on a connection above ``limit``."""
    return Rejected(
        f"The server has reached its limit of {limit} connections (--max-connections).",
        status=503,
        kind="overloaded_error",
        code="too_many_connections",
        retry_after_s=1,
    )


def many_pipelined(limit: int) -> Rejected:
    """Return the error for a request that was sent while ``limit`` earlier requests are waiting."""
    text = f"The connection already has {limit} requests that are waiting until earlier requests are answered."
    return Rejected(text, status=429, kind="rate_limit_error", code="too_many_pipelined_requests", retry_after_s=1)


def late(timeout_s: float) -> Rejected:
    """Return the error for a request that did not arrive in time."""
    text = f"The request was not complete after {timeout_s:g} s (--receive-timeout)."
    return Rejected(text, status=408, kind="timeout_error", code="request_timeout")
