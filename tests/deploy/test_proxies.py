"""nginx and HAProxy in front of a daemon, with the files of deploy/."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .proxies import PATIENCE_S, Proxy, program, running_proxy

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not (program("nginx") and program("haproxy")), reason="nginx and HAProxy are not installed"),
]

POOL = 1024  # tokens
FLAGS = ("--root-path", "/llm", "--sim-step-ms", "5", "--max-total-tokens", str(POOL), "--sse-keep-alive", "0")
LONG_OUTPUT = POOL - 100
LONG = {"prompt": "tide", "max_tokens": LONG_OUTPUT, "ignore_eos": True}


@pytest.fixture(params=["nginx", "haproxy"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(start_shared_daemon: Any) -> Any:
    return start_shared_daemon(*FLAGS)


@pytest.fixture
def proxy(name: str, backend: Any, tmp_path: Path) -> Iterator[Proxy]:
    with running_proxy(name, tmp_path, backend.url.removeprefix("http://")) as started:
        yield started


def metric(daemon: Any, name: str, **labels: str) -> float:
    """The sum of the series with these labels, read without the proxy."""
    page = httpx.get(f"{daemon.url}/metrics", timeout=PATIENCE_S).text
    lines = [line for line in page.splitlines() if line.startswith(f"ebbtide:{name}{{")]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.split()[-1]) for line in lines if all(pair in line for pair in wanted))


def wait_for(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.05)


def test_no_event_of_a_stream_is_held_back(proxy: Proxy, backend: Any) -> None:
    """While the engine is paused, all earlier tokens must arrive: no later event could flush a buffer of the proxy."""
    body = LONG | {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    def tokens() -> float:
        return metric(backend, "generation_tokens_total")

    before = tokens()
    with proxy.client() as http, http.stream("POST", "/v1/completions", json=body) as answer:
        events = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        assert answer.headers["content-type"].startswith("text/event-stream")
        next(events)
        assert httpx.post(f"{backend.url}/pause_generation", timeout=PATIENCE_S).status_code == 200
        try:
            # No throughput in the last report: its number of tokens is final.
            wait_for(lambda: tokens() > before and metric(backend, "gen_throughput") == 0)
            generated = tokens() - before
            received = 1
            while received < generated:
                received = json.loads(next(events))["usage"]["completion_tokens"]
            assert received == generated < LONG_OUTPUT
        finally:
            assert httpx.post(f"{backend.url}/continue_generation", timeout=PATIENCE_S).status_code == 200
    wait_for(lambda: metric(backend, "num_running_reqs") == 0)


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "complete"])
def test_a_client_that_leaves_frees_its_memory(proxy: Proxy, backend: Any, *, is_streamed: bool) -> None:
    aborted = metric(backend, "num_aborted_requests_total", reason="client")
    body = json.dumps(LONG | {"stream": is_streamed}).encode()
    head = f"POST /llm/v1/completions HTTP/1.1\r\nHost: llm.example\r\nContent-Length: {len(body)}\r\n"
    with proxy.tls.wrap_socket(socket.create_connection(proxy.address), server_hostname="127.0.0.1") as client:
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        if is_streamed:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        wait_for(lambda: metric(backend, "num_running_reqs") == 1)
    wait_for(lambda: metric(backend, "num_aborted_requests_total", reason="client") == aborted + 1)
    wait_for(lambda: metric(backend, "num_running_reqs") == 0)


def test_an_answer_of_memory_exhaustion_passes_once(proxy: Proxy, backend: Any) -> None:
    seen = metric(backend, "http_responses_total", method="POST")
    with proxy.client() as http:
        answer = http.post("/v1/completions", json=LONG | {"max_tokens": 2 * POOL})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "kv_cache_exhausted")
    assert answer.headers["x-should-retry"] == "false"
    wait_for(lambda: metric(backend, "http_responses_total", method="POST") == seen + 1)


class ClosingServer:
    """Answers GET, and closes the connection on each POST after it has read the whole request."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.posts: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while request := connection.recv(65536):
                if request.startswith(b"POST"):
                    self.posts.append(request)
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("is_reused", [False, True], ids=["new connection", "reused connection"])
def test_a_post_without_an_answer_is_not_sent_again(name: str, tmp_path: Path, *, is_reused: bool) -> None:
    server = ClosingServer()
    with contextlib.closing(server), running_proxy(name, tmp_path, server.address) as proxy, proxy.client() as http:
        if is_reused:
            assert http.get("/v1/models").status_code == 200
        # If a connection has already carried an answer, HAProxy closes it instead of sending a second one.
        is_closed = name == "haproxy" and is_reused
        with pytest.raises(httpx.RemoteProtocolError) if is_closed else contextlib.nullcontext():
            assert http.post("/v1/completions", json=LONG).status_code == 502
        assert len(server.posts) == 1


def test_large_bodies_pass_and_larger_ones_are_refused(proxy: Proxy) -> None:
    with proxy.client() as http:
        fits = http.post("/v1/completions", json={"prompt": "a" * (20 << 20)})
        assert (fits.status_code, fits.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert http.post("/v1/completions", json={"prompt": "a" * (33 << 20)}).status_code == 413


def test_the_prefix_and_requests_from_the_same_origin_work(proxy: Proxy) -> None:
    with proxy.client() as http:
        assert http.get("/v1/models").json()["data"]
        assert http.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]
        own = proxy.url.removesuffix("/llm")
        assert http.post("/tokenize", json={"prompt": "a"}, headers={"Origin": own}).status_code == 200
        foreign = http.post("/tokenize", json={"prompt": "a"}, headers={"Origin": "https://else.example"})
        assert foreign.json()["error"]["code"] == "origin_not_allowed"


def test_many_requests_share_the_connections_to_the_daemon(proxy: Proxy, backend: Any) -> None:
    with proxy.client() as http:
        answers = [http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}) for _ in range(20)]
        assert {answer.status_code for answer in answers} == {200}
    assert backend.is_running
