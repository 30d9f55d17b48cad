"""Writes a trace with a retraction into docs/monitoring/tracing.md: ``python -m tests.tracing.tracing_page``."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from ..conftest import Daemon
from .collectors import Span, http_collector

PAGE = Path(__file__).resolve().parents[2] / "docs" / "monitoring" / "tracing.md"
FLAGS = ("--sim-step-ms", "5", "--max-total-tokens", "512", "--context-length", "1024")
REQUESTS = 6
HIDDEN = ("resource", "trace_state", "kind")


def write_part(name: str, text: str) -> None:
    """Replace the generated part ``name`` of the page."""
    page = PAGE.read_text()
    start = page.index("-->", page.index(f"<!-- {name}: ")) + len("-->\n")
    PAGE.write_text(page[:start] + text + page[page.index(f"<!-- /{name} -->") :])


def record() -> list[Span]:
    """The spans of a request that was retracted, the span of the request first."""
    with http_collector() as collector:
        daemon = Daemon(("--otlp-endpoint", f"http://127.0.0.1:{collector.port}", *FLAGS))
        try:
            daemon.wait_until_ready()
            with ThreadPoolExecutor(REQUESTS) as pool:
                traces = list(pool.map(lambda number: ask(daemon.url, number), range(REQUESTS)))
            daemon.signal(signal.SIGTERM)
            daemon.wait()
        finally:
            daemon.close()
        found = next(trace for trace in traces if collector.root(trace).events)
        return sorted(collector.trace(found), key=lambda span: (span.id != collector.root(found).id, span.start))


def ask(url: str, number: int) -> str:
    """Send a request in a new trace, and return the id of the trace."""
    trace = os.urandom(16).hex()
    body = {"prompt": f"tide {number} ", "max_tokens": 200, "ignore_eos": True, "temperature": 0.7}
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60).raise_for_status()
    return trace


def as_json(spans: list[Span]) -> str:
    """The spans as a JSON array, one line for each attribute. Empty fields are left out."""
    shown: list[dict[str, Any]] = []
    for span in spans:
        fields = {name: value for name, value in asdict(span).items() if name not in HIDDEN and value}
        fields["events"] = [{"name": name, "time": time, **values} for name, time, values in span.events]
        shown.append({name: value for name, value in fields.items() if value})
    return json.dumps(shown, indent=1)


if __name__ == "__main__":
    write_part("trace", f"```json\n{as_json(record())}\n```\n")
