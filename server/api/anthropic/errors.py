"""Errors in the form that Anthropic's clients read."""

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


def anthropic_error(error: Rejected) -> dict[str, Any]:
    """The body of an error, and the event of one that comes in the middle of a stream."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    return {"type": "error", "error": {"type": KINDS.get(error.status, default), "message": error.message}}
