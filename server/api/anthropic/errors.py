"""Errors in the format of Anthropic's API."""

from __future__ import annotations

from typing import Any

from ebbtide.errors import Rejected

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
THREADS_UNSUPPORTED = "thread_unsupported_request"  # a code that Anthropic's clients handle


def anthropic_error(error: Rejected) -> dict[str, Any]:
    """Return the body of an error response, which is also the data of an error event in a stream."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    shown: dict[str, Any] = {"type": KINDS.get(error.status, default), "message": error.message}
    if error.code == THREADS_UNSUPPORTED:
        shown["details"] = {"error_code": error.code, "unsupported": [error.param]}
    return {"type": "error", "error": shown}
