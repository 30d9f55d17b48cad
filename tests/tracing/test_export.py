"""Counts, warnings and settings of the export of spans, without a collector."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ebbtide.config import TracingConfig
from ebbtide.errors import StartupError
from ebbtide.server.tracing import settings
from ebbtide.server.tracing.export import SpanExport, open_export
from ebbtide.server.tracing.settings import check_tracing, http_url, protocol_of


@dataclass
class FakeExporter(SpanExporter):
    """Accepts or refuses batches. ``export`` waits until ``gate`` is set."""

    result: SpanExportResult = SpanExportResult.SUCCESS
    gate: threading.Event = field(default_factory=threading.Event)
    exporting: threading.Event = field(default_factory=threading.Event)
    names: list[str] = field(default_factory=list)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.exporting.set()
        self.gate.wait()
        logging.getLogger("opentelemetry.exporter").warning("the collector said no")
        self.names += [span.name for span in spans]
        return self.result


@pytest.fixture
def fake() -> FakeExporter:
    return FakeExporter()


@pytest.fixture
def opened(fake: FakeExporter, monkeypatch: pytest.MonkeyPatch) -> SpanExport:
    """An export with a queue of 4 spans, which are sent only when the export is flushed."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    return SpanExport(fake, clock=lambda: 0.0)


def end_spans(opened: SpanExport, count: int) -> None:
    for number in range(count):
        opened.tracer.start_span(str(number)).end()


@pytest.mark.anyio
async def test_accepted_spans_are_counted(opened: SpanExport, fake: FakeExporter) -> None:
    fake.gate.set()
    end_spans(opened, 3)
    opened.flush()
    assert (opened.counts.exported, opened.counts.dropped) == (3, 0)
    await opened.stop()


@pytest.mark.anyio
async def test_refused_spans_are_counted_with_one_warning(
    opened: SpanExport, fake: FakeExporter, caplog: pytest.LogCaptureFixture
) -> None:
    fake.result = SpanExportResult.FAILURE
    fake.gate.set()
    for _ in range(3):
        end_spans(opened, 2)
        opened.flush()
    assert (opened.counts.exported, opened.counts.dropped) == (0, 6)
    assert not logging.getLogger("opentelemetry").propagate, "the SDK's own warnings are not logged"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("ebbtide")] == [
        "the OpenTelemetry collector does not accept spans; 2 were dropped so far: the collector said no"
    ]
    await opened.stop()


@pytest.mark.anyio
async def test_spans_that_a_full_queue_drops_are_counted(opened: SpanExport, fake: FakeExporter) -> None:
    end_spans(opened, 4)  # a full batch wakes the thread, which waits in the exporter
    assert fake.exporting.wait(60)
    end_spans(opened, 4 + 3)
    assert opened.counts.dropped == 3
    fake.gate.set()
    opened.flush()
    assert (opened.counts.exported, opened.counts.dropped) == (8, 3)
    assert len(fake.names) == 8
    await opened.stop()


@pytest.mark.anyio
async def test_a_stop_does_not_wait_for_a_collector_that_hangs(
    opened: SpanExport, fake: FakeExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.server.tracing.export.STOP_TIMEOUT_S", 0.01)
    end_spans(opened, 1)
    await opened.stop()
    assert fake.names == []
    fake.gate.set()


def test_an_invalid_variable_of_the_sdk_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    with pytest.raises(StartupError, match=r"OTEL_\*.*many"):
        open_export(TracingConfig("http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("flag", "variables", "protocol"),
    [
        ("auto", {}, "http/protobuf"),
        ("auto", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc"),
        ("auto", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, None),
        ("grpc", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "grpc"),
    ],
)
def test_the_flag_decides_on_the_protocol_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, flag: str, variables: dict[str, str], protocol: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = TracingConfig("http://127.0.0.1:1", flag)  # type: ignore[arg-type]
    assert protocol_of(config) == (protocol or "http/protobuf")


def test_an_unknown_protocol_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(StartupError, match="OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf or grpc"):
        check_tracing(TracingConfig("http://127.0.0.1:1"))


@pytest.mark.parametrize("url", ["collector", "collector:4318", "ftp://collector", "http://"])
def test_a_malformed_endpoint_is_an_error(url: str) -> None:
    with pytest.raises(StartupError, match="--otlp-endpoint must be a URL such as"):
        check_tracing(TracingConfig(url))


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_missing_packages_are_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    def find(name: str) -> object:
        if protocol == "grpc":
            return None if name.endswith("grpc") else object()
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(settings, "find_spec", find)
    with pytest.raises(StartupError, match=r"pip install 'ebbtide\[otel\]'"):
        check_tracing(TracingConfig("http://127.0.0.1:1", protocol))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("http://host:4318/", "http://host:4318/v1/traces"),
        ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_path_of_traces(given: str, used: str) -> None:
    assert http_url(given) == used


def test_the_sdk_of_opentelemetry_is_not_imported_without_the_flag() -> None:
    code = (
        "import sys, ebbtide.server.frontend, ebbtide.server.daemon.settings, ebbtide.scheduler.process\n"
        "needed = ('opentelemetry.sdk', 'opentelemetry.exporter', 'grpc', 'ebbtide.server.tracing.traces')\n"
        "sys.exit(', '.join(name for name in sys.modules if name.startswith(needed)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
