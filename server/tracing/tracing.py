"""Assembles the tracing of a front process: the open traces, the connection to the collector, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp

from ebbtide.messages import PhaseChanges, PressureEvent

from ..metrics.metrics import FrontMetrics
from .export import SpanExport
from .middleware import TraceRequests
from .traces import Traces


class Tracing:
    """Implements ``RequestTracing``. page_sizes: see ``Traces``."""

    def __init__(self, export: SpanExport, page_sizes: Mapping[str, int]) -> None:
        self._export = export
        self._traces = Traces(export.tracer, page_sizes)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with the middleware that traces its requests."""
        return TraceRequests(app, self._traces)

    def register_metrics(self, metrics: FrontMetrics) -> None:
        """Export the numbers of sent and dropped spans."""
        counts = self._export.counts
        metrics.counter("trace_spans_exported_total", lambda: counts.exported)
        metrics.counter("trace_spans_dropped_total", lambda: counts.dropped)

    def handle(self, message: PhaseChanges | PressureEvent) -> None:
        """Add the scheduler's message to the traces of its requests."""
        if isinstance(message, PhaseChanges):
            self._traces.apply(message)
        else:
            self._traces.pressure(message)

    def on_scheduler_death(self) -> None:
        """End all choices that the scheduler has not ended."""
        self._traces.on_scheduler_death()

    async def stop(self) -> None:
        """Send the remaining spans."""
        self._traces.emit_all()
        await self._export.stop()
