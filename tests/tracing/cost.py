"""Measures the CPU time of one traced request in the front, without its response: ``python -m tests.tracing.cost``.

Writes the result into docs/monitoring/tracing.md.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ebbtide.messages import PhaseChange, PhaseChanges, SamplingParams, TextItem, TextParams
from ebbtide.server.tracing.export import SpanExport
from ebbtide.server.tracing.traces import Traces
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.response_stream import ResponseStream

from .tracing_page import write_part

REQUESTS = 2000
SCOPE = {
    "method": "POST",
    "path": "/v1/completions",
    "headers": [(b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")],
}
PREPARED = PreparedRequest([[1, 2, 3]], [SamplingParams(8)], TextParams())


class Encoder(SpanExporter):
    """Encodes the spans and sends nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def trace_request(traces: Traces, rid: str) -> None:
    """Do the tracing work of one request with one choice, from its headers to the end of its response."""
    trace = traces.begin(SCOPE, "text_completion")
    stream = ResponseStream([rid], time.monotonic(), lambda _: None)
    trace.submitted(stream, PREPARED, "sim")
    item = TextItem(rid, "", [1], 1, finish="stop", cached_tokens=0, prompt_tokens=3)
    stream.facts.add(0, item)
    stream.add(0, item)
    now = time.monotonic()
    for phase in ("prefill", "decode", "end"):
        traces.apply(PhaseChanges([PhaseChange(rid, phase, now)]))
    trace.http_status = 200
    traces.finish(trace, None)


async def measure() -> tuple[float, float]:
    """Return the CPU time per request in microseconds: of the event loop's thread, and of all threads."""
    export = SpanExport(Encoder())
    traces = Traces(export.tracer, {})
    for number in range(100):
        trace_request(traces, f"warm-{number}")
    export.flush()
    loop_s, all_s = time.thread_time(), time.process_time()
    for number in range(REQUESTS):
        trace_request(traces, f"{number}")
        if number % 100 == 99:  # before the queue is full
            await asyncio.to_thread(export.flush)
    used = time.thread_time() - loop_s, time.process_time() - all_s
    assert (export.counts.exported, export.counts.dropped) == ((REQUESTS + 100) * 4, 0)
    await export.stop()
    return used[0] / REQUESTS * 1e6, used[1] / REQUESTS * 1e6


if __name__ == "__main__":
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "3600000"
    loop_us, all_us = asyncio.run(measure())
    text = (
        f"A request with one choice, hence four spans, costs the front process {loop_us:.0f} µs of CPU time in its "
        f"event loop, and {all_us:.0f} µs in all\nthreads, with the encoding of the spans but without the connection "
        f"to the collector ({REQUESTS} requests). At 10 requests per second,\nthat is "
        f"{all_us / 1000:.1f} % of a core.\n"
    )
    write_part("cost", text)
