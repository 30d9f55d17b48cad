"""Traces of a real daemon, as a real collector receives them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
import pytest

from ..conftest import Daemon, StartDaemon
from ..processes.streaming import streams
from ..processes.test_faults import total
from .collectors import Collector, Span, grpc_collector, http_collector

PARENT = "00f067aa0ba902b7"
FLAGS = ("--sim-step-ms", "2", "--max-total-tokens", "512", "--context-length", "2048", "--enable-streaming-session")
PHASES = {"queue", "prefill", "decode"}


@dataclass
class Traced:
    """A daemon that sends its traces to ``collector``."""

    daemon: Daemon
    collector: Collector

    def ask(self, path: str = "/v1/completions", *, sampled: bool = True, **body: Any) -> tuple[httpx.Response, str]:
        """Send a request in a new trace. Returns the response and the id of the trace."""
        trace = os.urandom(16).hex()
        headers = {"traceparent": f"00-{trace}-{PARENT}-0{int(sampled)}", "tracestate": "vendor=1"}
        return httpx.post(f"{self.daemon.url}{path}", json=body, headers=headers, timeout=60), trace

    def spans(self, path: str = "/v1/completions", **body: Any) -> list[Span]:
        """Send a request and return the spans of its trace, the span of the request first."""
        _, trace = self.ask(path, **body)
        spans = self.collector.trace(trace)
        return sorted(spans, key=lambda span: (span.parent != PARENT, span.start))


def start(start: StartDaemon, endpoint: str, *flags: str) -> Daemon:
    """Start a daemon that sends its spans often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        return start("--otlp-endpoint", endpoint, *flags)


@pytest.fixture(scope="module")
def traced(start_shared_daemon: StartDaemon) -> Iterator[Traced]:
    """A daemon with a pool of 32 pages."""
    with http_collector() as collector:
        yield Traced(start(start_shared_daemon, f"http://127.0.0.1:{collector.port}", *FLAGS), collector)


def of(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def check_phases(spans: list[Span], parent: Span) -> list[Span]:
    """The phases below ``parent`` follow each other without a gap."""
    phases = sorted((span for span in spans if span.parent == parent.id and span.name in PHASES), key=lambda s: s.start)
    assert phases[0].start >= parent.start
    for one, following in pairwise(phases):
        assert one.end == following.start
    return phases


def test_a_request_has_a_span_and_a_child_for_each_phase(traced: Traced) -> None:
    prompt = "a secret of the tide"
    root, *rest = spans = traced.spans(prompt=prompt, max_tokens=5, temperature=0.5, top_p=0.9, ignore_eos=True, seed=1)
    assert (root.name, root.kind, root.parent, root.error) == ("text_completion sim", 2, PARENT, None)
    assert [span.name for span in check_phases(spans, root)] == ["queue", "prefill", "decode"]
    assert len(rest) == 3
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "ebbtide",
        "gen_ai.request.model": "sim",
        "gen_ai.response.model": "sim",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.usage.input_tokens": len(prompt),
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
    }
    assert {name: root.attributes.get(name) for name in expected} == expected
    assert (root.trace_state, root.resource["service.name"]) == ("vendor=1", "ebbtide")
    assert root.resource["deployment.environment.name"] == "test"
    assert set(traced.collector.paths) == {"/v1/traces"}
    assert "secret" not in repr(spans)


def test_the_response_names_the_span_of_the_request(traced: Traced) -> None:
    reply, trace = traced.ask(prompt="tide", max_tokens=1)
    root = traced.collector.root(trace)
    assert reply.headers["traceresponse"] == f"00-{trace}-{root.id}-01"
    alone = httpx.post(f"{traced.daemon.url}/v1/completions", json={"prompt": "tide", "max_tokens": 1}, timeout=60)
    root = traced.collector.root(alone.headers["traceresponse"].split("-")[1])
    assert root.parent == ""
    assert "traceresponse" not in httpx.get(f"{traced.daemon.url}/health").headers


def test_a_trace_that_is_not_sampled_is_not_sent(traced: Traced) -> None:
    reply, trace = traced.ask(sampled=False, prompt="tide", max_tokens=1)
    assert reply.headers["traceresponse"].endswith("-00")
    traced.spans(prompt="tide", max_tokens=1)  # the other trace would have been sent before this one
    assert not any(span.trace == trace for span in traced.collector.received)


def test_a_retraction_is_an_event_with_its_cost(traced: Traced) -> None:
    body: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(6) as pool:
        asked = pool.map(lambda number: traced.spans(prompt=f"{number} tides", **body), range(6))
        retracted = [spans for spans in asked if spans[0].events]
    assert retracted
    for spans in retracted:
        root = spans[0]
        phases = check_phases(spans, root)
        cost = root.event("retracted")
        assert cost["ebbtide.retraction.reason"] == "memory"
        assert cost["ebbtide.retraction.number"] == 1
        assert cost["ebbtide.retraction.freed_pages"] > 0
        assert cost["ebbtide.retraction.tokens_to_recompute"] > 0
        again = root.event("resumed")
        assert again["ebbtide.tokens_to_compute"] + again["ebbtide.cached_tokens"] > 0
        times = {name: time for name, time, _ in reversed(root.events)}
        waits = [span for span in phases if span.name == "queue"]
        assert (waits[1].start, waits[1].end) == (times["retracted"], times["resumed"])
        assert round((waits[1].end - waits[1].start) / 1e9, 5) == pytest.approx(again["ebbtide.waited_s"], abs=1e-5)
        assert len(waits) == 1 + root.attributes["ebbtide.num_retractions"]
        assert root.attributes["gen_ai.usage.output_tokens"] == 200


def test_each_choice_of_a_batch_has_a_span(traced: Traced) -> None:
    spans = traced.spans(prompt=["high", "low"], n=2, max_tokens=3, ignore_eos=True)
    root, choices = spans[0], of(spans, "choice")
    assert sorted(choice.attributes["ebbtide.choice.index"] for choice in choices) == [0, 1, 2, 3]
    for choice in choices:
        assert choice.parent == root.id
        assert [span.name for span in check_phases(spans, choice)] == ["queue", "prefill", "decode"]
    assert root.attributes["gen_ai.usage.input_tokens"] == len("high") + len("low")
    assert root.attributes["gen_ai.usage.output_tokens"] == 12
    assert (root.attributes["gen_ai.request.choice.count"], root.attributes["ebbtide.request.prompts"]) == (2, 2)


def test_a_turn_of_a_session_names_the_session(traced: Traced) -> None:
    opened = httpx.post(f"{traced.daemon.url}/v1/sessions", json={}, timeout=60).json()["id"]
    for words in ("ebb", "flood"):
        root, *_ = traced.spans(prompt=words, session_id=opened, max_tokens=2)
        assert root.attributes["gen_ai.conversation.id"] == opened
    httpx.delete(f"{traced.daemon.url}/v1/sessions/{opened}", timeout=60)


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "tide"}], "max_tokens": 2}, "chat"),
        ("/v1/responses", {"input": "tide", "max_output_tokens": 2}, "chat"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "tide"}], "max_tokens": 2, "model": "sim"}, "chat"),
        ("/generate", {"text": "tide", "sampling_params": {"max_new_tokens": 2}}, "text_completion"),
        ("/v1/embeddings", {"input": ["ebb", "flood"]}, "embeddings"),
    ],
)
def test_every_api_is_traced(traced: Traced, path: str, body: dict[str, Any], operation: str) -> None:
    root, *rest = traced.spans(path, **body)
    assert root.attributes["gen_ai.operation.name"] == operation
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["gen_ai.usage.input_tokens"] > 0
    assert {span.name for span in rest} >= {"queue", "prefill"}


def test_a_refused_request_has_only_its_own_span(traced: Traced) -> None:
    root, *rest = traced.spans(prompt="tide", max_tokens=100_000)
    assert (rest, root.error, root.name) == ([], None, "POST /v1/completions")
    assert root.attributes["error.type"] == "context_length_exceeded"
    assert root.attributes["http.response.status_code"] == 400


def test_a_request_that_outgrows_the_pool_ends_with_an_error(traced: Traced) -> None:
    spans = traced.spans(prompt="tide", max_tokens=1500, ignore_eos=True)
    root = spans[0]
    assert (root.error, root.attributes["error.type"]) == ("kv_cache_exhausted", "kv_cache_exhausted")
    assert root.attributes["http.response.status_code"] == 500
    assert [span.name for span in check_phases(spans, root)] == ["queue", "prefill", "decode"]


def test_a_stream_that_the_client_leaves_ends_with_an_error(traced: Traced) -> None:
    before = len(traced.collector.received)
    with streams(traced.daemon.url, 1, max_tokens=400):
        pass
    collector = traced.collector
    with collector.arrived:
        assert collector.arrived.wait_for(
            lambda: any(span.kind == 2 for span in collector.received[before:]), timeout=60
        )
    *phases, root = collector.received[before:]
    assert (root.error, root.attributes["error.type"]) == ("client_disconnected", "client_disconnected")
    assert [span.name for span in phases] == ["queue", "prefill", "decode"]
    assert 0 < root.attributes["gen_ai.usage.output_tokens"] < 400


def test_an_aborted_request_ends_with_an_error(traced: Traced) -> None:
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=traced.daemon.url, timeout=60) as client:
        asked = pool.submit(traced.ask, prompt="tide", max_tokens=400, ignore_eos=True, request_id="mine")
        while not client.post("/abort_request", json={"rid": "mine"}).json()["num_aborted"]:
            pass
        reply, trace = asked.result()
    root = traced.collector.root(trace)
    assert root.attributes["error.type"] == "aborted"
    assert root.attributes["http.response.status_code"] == reply.status_code


def test_a_killed_scheduler_ends_the_traces_and_new_ones_follow(start_daemon: StartDaemon) -> None:
    with http_collector() as collector:
        flags = ("--sim-step-ms", "5", "--restart-on-failure", "1")
        traced = Traced(start(start_daemon, f"http://127.0.0.1:{collector.port}", *flags), collector)
        with ThreadPoolExecutor(1) as pool, streams(traced.daemon.url, 1) as [open_stream]:
            asked = pool.submit(traced.ask, prompt="tide", max_tokens=30_000, ignore_eos=True)
            next(open_stream)
            os.kill(traced.daemon.pids["scheduler"], signal.SIGKILL)
            _, trace = asked.result()
        assert traced.collector.root(trace).error == "engine_dead"
        while httpx.get(f"{traced.daemon.url}/ready", timeout=60).status_code != 200:
            pass
        spans = traced.spans(prompt="tide", max_tokens=2)
        assert [span.name for span in check_phases(spans, spans[0])] == ["queue", "prefill", "decode"]


def test_restored_memory_is_an_event_and_grpc_carries_it(start_daemon: StartDaemon) -> None:
    with grpc_collector() as collector:
        flags = ("--otlp-protocol", "grpc", "--test-retract-interval", "7", "--kv-offload-gb", "0.1")
        daemon = start(start_daemon, f"http://127.0.0.1:{collector.port}", *flags)
        spans = Traced(daemon, collector).spans(prompt="tide " * 30, max_tokens=60, ignore_eos=True)
        root = spans[0]
        names = [name for name, _, _ in root.events]
        assert names[:3] == ["retracted", "restored", "resumed"]
        assert root.event("retracted")["ebbtide.retraction.offloaded"]
        assert root.event("restored")["ebbtide.restored_tokens"] > 0
        assert root.event("resumed")["ebbtide.restored_tokens"] == root.event("restored")["ebbtide.restored_tokens"]
        check_phases(spans, root)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


def test_a_dead_collector_costs_one_warning(start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with http_collector() as collector:
        port = collector.port
    daemon = start(start_daemon, f"http://127.0.0.1:{port}")
    dropped = 0.0
    while dropped < 8:  # two requests with four spans each
        reply = httpx.post(f"{daemon.url}/v1/completions", json={"prompt": "tide", "max_tokens": 1}, timeout=60)
        assert reply.status_code == 200
        dropped = total(daemon.url, "trace_spans_dropped_total")
    assert total(daemon.url, "trace_spans_exported_total") == 0
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert "Traceback" not in daemon.log
    assert daemon.log.count("the OpenTelemetry collector does not accept spans") == 1
    assert daemon.log.count(f"{port}") <= 1, "the SDK's own warnings are not logged"
