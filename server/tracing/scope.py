"""The place of a request's trace in the ASGI scope. This module does not import OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from .request_trace import RequestTrace

TRACE = "ebbtide.trace"


def trace_of(scope: Scope) -> RequestTrace | None:
    """Return the trace of a request. Returns None if the request is not traced."""
    trace: RequestTrace | None = scope.get(TRACE)
    return trace


def note_model(scope: Scope, model: str | None) -> None:
    """Record the model that a request names."""
    trace = trace_of(scope)
    if trace is not None:
        trace.requested_model = model
