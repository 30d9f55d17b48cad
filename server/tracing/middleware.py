"""ASGI middleware that traces the requests to the model and returns the ids of the trace to the client."""

from __future__ import annotations

from opentelemetry.trace import Span
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..http.error_replies import ERROR_CODE
from .scope import TRACE
from .traces import Traces

RESPONSE_HEADER = "traceresponse"

# The path of each route that uses the model, and its gen_ai.operation.name.
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), "rerank"),
    **dict.fromkeys(("/v1/score", "/score"), "score"),
}


class TraceRequests:
    """Traces POST requests to the paths in ``OPERATIONS``. Requests that the key check refuses do not reach it."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = OPERATIONS.get(scope["path"].removeprefix(scope.get("root_path", "")))
        if operation is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        trace = scope[TRACE] = self._traces.begin(scope, operation)

        async def send_with_trace(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.http_status = message["status"]
                MutableHeaders(scope=message)[RESPONSE_HEADER] = _trace_ids(trace.span)
            await send(message)

        try:
            await self._app(scope, receive, send_with_trace)
        finally:
            self._traces.finish(trace, scope.get(ERROR_CODE))


def _trace_ids(span: Span) -> str:
    """Return the ids of a span in the form of W3C's traceparent."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
