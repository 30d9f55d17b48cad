"""OpenTelemetry collectors in the test's process, which receive real OTLP messages over HTTP or gRPC."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

WAIT_S = 60.0


@dataclass(frozen=True)
class Span:
    """One received span. events: (name, time in nanoseconds, attributes)."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    error: str | None
    resource: dict[str, Any]
    trace_state: str

    def event(self, name: str) -> dict[str, Any]:
        """The attributes of the first event with this name."""
        return next(attributes for found, _, attributes in self.events if found == name)


@dataclass
class Collector:
    """Received spans, in the order of their arrival. port: the collector listens on 127.0.0.1."""

    port: int
    received: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def add(self, message: ExportTraceServiceRequest) -> None:
        """Store the spans of a message."""
        with self.arrived:
            for part in message.resource_spans:
                resource = _attributes(part.resource.attributes)
                for scope in part.scope_spans:
                    self.received += [_span(span, resource) for span in scope.spans]
            self.arrived.notify_all()

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace, once its server span has arrived."""
        self._wait(lambda: any(span.trace == trace_id and span.kind == SERVER for span in self.received))
        return [span for span in self.received if span.trace == trace_id]

    def root(self, trace_id: str) -> Span:
        """The server span of a trace."""
        return next(span for span in self.trace(trace_id) if span.kind == SERVER)

    def _wait(self, true: Callable[[], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(true, WAIT_S), [span.name for span in self.received]


SERVER = 2
ERROR = 2


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events],
        error=span.status.message if span.status.code == ERROR else None,
        resource=resource,
        trace_state=span.trace_state,
    )


@contextlib.contextmanager
def http_collector() -> Iterator[Collector]:
    """A collector for OTLP over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.append(self.path)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            collector.add(ExportTraceServiceRequest.FromString(body))

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collector]:
    """A collector for OTLP over gRPC."""

    class Service(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
            collector.add(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    collector = Collector(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()
