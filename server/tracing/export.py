"""Sends spans to a collector over OTLP, in a thread of the SDK.

The settings that have no flag are the SDK's environment variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_BSP_*,
OTEL_EXPORTER_OTLP_*, …).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

from ebbtide import __version__
from ebbtide.config import TracingConfig
from ebbtide.errors import StartupError

from .settings import GRPC, http_url, protocol_of

log = logging.getLogger(__name__)

WARNING_INTERVAL_S = 60.0
QUEUE_SIZE = 2048  # the SDK's default
STOP_TIMEOUT_S = 3.0  # seconds that a stopping server waits for the export of the last spans


class SpanCounts:
    """Numbers of spans. Each attribute has one writer: the event loop, or the thread that exports.

    Attributes:
        ended: spans that were added to the queue.
        overflowed: spans that were dropped because the queue was full.
        taken: spans that were taken from the queue.
        exported: spans that the collector accepted.
        refused: spans that the collector did not accept in time.
    """

    def __init__(self, queue_size: int) -> None:
        self.ended = self.overflowed = self.taken = self.exported = self.refused = 0
        self._queue_size = queue_size

    @property
    def dropped(self) -> int:
        """Number of spans that were dropped."""
        return self.overflowed + self.refused

    def add_ended(self) -> None:
        """Count a span that is added to the queue, which drops its oldest span if it is full."""
        if self.ended - self.overflowed - self.taken >= self._queue_size:
            self.overflowed += 1
        self.ended += 1


class _CountingProcessor(SpanProcessor):
    """Passes sampled spans to ``inner`` and counts them."""

    def __init__(self, inner: SpanProcessor, counts: SpanCounts) -> None:
        self._inner = inner
        self._counts = counts

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._counts.add_ended()
            self._inner.on_end(span)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _CountingExporter(SpanExporter):
    """Passes spans to ``inner``, counts them, and logs at most one warning a minute. It runs in the SDK's thread."""

    def __init__(
        self, inner: SpanExporter, counts: SpanCounts, reason: Callable[[], str], clock: Callable[[], float]
    ) -> None:
        """reason: returns the last message of the SDK."""
        self._inner = inner
        self._counts = counts
        self._reason = reason
        self._clock = clock
        self._next_warning_s = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._counts.taken += len(spans)
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._counts.exported += len(spans)
        else:
            self._counts.refused += len(spans)
            self._warn()
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def _warn(self) -> None:
        now = self._clock()
        if now >= self._next_warning_s:
            self._next_warning_s = now + WARNING_INTERVAL_S
            log.warning(
                "the OpenTelemetry collector does not accept spans; %d were dropped so far: %s",
                self._counts.dropped,
                self._reason(),
            )


class _LastMessage(logging.Handler):
    """Keeps the SDK's last warning. The warnings themselves are not logged, because the SDK emits one per batch."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = "no reason is known"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class SpanExport:
    """The connection to the collector.

    Attributes:
        tracer: creates spans, which are sent once they have ended.
        counts: the numbers of spans.
    """

    def __init__(self, exporter: SpanExporter, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ValueError if an environment variable of the SDK is invalid."""
        queue_size = int(os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or QUEUE_SIZE)
        self.counts = SpanCounts(queue_size)
        self._messages = _LastMessage()
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self._messages)
        self._logger.propagate = False
        self._exporter = _CountingExporter(exporter, self.counts, lambda: self._messages.text, clock)
        batches = BatchSpanProcessor(self._exporter, max_queue_size=queue_size)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(_CountingProcessor(batches, self.counts))
        self.tracer: Tracer = self._provider.get_tracer("ebbtide", __version__)

    def flush(self) -> None:
        """Send all spans that have ended. Blocks."""
        self._provider.force_flush()

    async def stop(self) -> None:
        """Send the remaining spans, for at most ``STOP_TIMEOUT_S``."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def flush() -> None:
            self._provider.force_flush()
            with contextlib.suppress(RuntimeError):  # the loop was closed while the flush was running
                loop.call_soon_threadsafe(done.set)

        # The process would not exit before a thread of the default executor has ended.
        threading.Thread(target=flush, name="last-spans", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), STOP_TIMEOUT_S)
        self._exporter.shutdown()  # ends the retries, so that the next line does not wait for a collector
        if done.is_set():
            self._provider.shutdown()
        self._logger.removeHandler(self._messages)
        self._logger.propagate = True


def open_export(config: TracingConfig) -> SpanExport:
    """Connect to the configured collector. Raises StartupError if a setting of the SDK is invalid."""
    assert config.otlp_endpoint is not None
    try:
        return SpanExport(_exporter(config.otlp_endpoint, protocol_of(config)))
    except ValueError as error:
        raise StartupError(f"A variable of OpenTelemetry (OTEL_*) is invalid: {error}") from error


def _exporter(endpoint: str, protocol: str) -> SpanExporter:
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(endpoint=http_url(endpoint))


def _resource() -> Resource:
    """Return the resource that the environment describes, with the name "ebbtide" if it gives no service name."""
    found = Resource.create()
    own = {SERVICE_VERSION: __version__}
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        own[SERVICE_NAME] = "ebbtide"
    return Resource(own).merge(found) if SERVICE_NAME not in own else found.merge(Resource(own))
