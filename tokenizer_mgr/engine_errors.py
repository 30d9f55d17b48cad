"""Converts the engine's aborts and refusals to the errors that clients receive."""

from __future__ import annotations

from ebbtide.errors import Rejected
from ebbtide.messages import AbortReq

STATUS_KINDS = {  # OpenAI's error types
    404: "not_found_error",
    409: "conflict_error",
    410: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
NEVER_RETRIED = (409, 500, 504)  # sent with x-should-retry: false, because the official clients would retry them
PERMANENT_CODES = ("session_full",)  # clients must not retry these, because the retry would fail again
RETRIABLE = (429, 503)


def send_error(refusal: Rejected | None) -> Rejected:
    """Return the error for a message that could not be sent: ``refusal`` if the reason is known."""
    return refusal or Rejected(
        "The scheduler is not accepting new work.",
        status=503,
        kind="overloaded_error",
        code="engine_silent",
        retry_after_s=5,
    )


def error_kind(status: int) -> str:
    """Return the ``type`` of OpenAI's error object for an HTTP status."""
    return STATUS_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")


def abort_error(abort: AbortReq) -> Rejected:
    """Convert the scheduler's abort to the client's error, with retry advice."""
    status = abort.status or 500
    is_permanent = status in NEVER_RETRIED or abort.code in PERMANENT_CODES
    default_s = 1.0 if status in RETRIABLE and not is_permanent else None
    return Rejected(
        abort.message or f"The request was aborted: {abort.reason}.",
        status=status,
        kind=error_kind(status),
        code=abort.code or abort.reason,
        retry_after_s=default_s if abort.retry_after_s is None else abort.retry_after_s,
        should_retry=False if is_permanent else None,
    )
