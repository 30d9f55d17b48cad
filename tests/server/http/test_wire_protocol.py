"""Slow clients, many connections and endless heads, on real sockets."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import re
from pathlib import Path

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ebbtide.server.http.arriving_request import MAX_HEAD_BYTES
from ebbtide.server.http.http_server import http_server
from ebbtide.server.http.wire_protocol import OVERFLOW_CONNECTIONS, WireProtocol
from ebbtide.server.http.wire_refusal import MAX_HEADERS

from ..conftest import ScriptedEngine
from .conftest import Serve
from .raw_connection import GET, HEAD, POST, answer, connection, refusal, rest

OVERRIDDEN = (
    *("connection_made", "connection_lost", "data_received", "eof_received", "on_message_begin", "on_header"),
    *("on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "_start_asgi_task"),
)
ATTRIBUTES = {
    "connections",
    "cycle",
    "expect_100_continue",
    "flow",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "scheme",
    "transport",
    "url",
}
CYCLE = {
    *("response_started", "chunked_encoding", "expected_content_length", "disconnected", "message_event"),
    *("keep_alive", "more_body", "scope", "waiting_for_100_continue"),
}
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize(
    "sent", [b"G", GET[:-2], HEAD + b"Content-Length: 99\r\n\r\n", HEAD + b"Content-Length: 99\r\n\r\n{"]
)
def test_an_incomplete_request_is_408(serve: Serve, sent: bytes) -> None:
    with connection(serve(receive_timeout_s=0.2)) as opened:
        opened.sendall(sent)
        status, error = refusal(rest(opened))
    assert (status, error["type"], error["code"]) == (408, "timeout_error", "request_timeout")


def test_slow_bytes_do_not_extend_the_timeout(serve: Serve, engine: ScriptedEngine) -> None:
    with connection(serve(receive_timeout_s=0.3)) as opened:
        opened.sendall(HEAD + b"X-Slow: ")
        opened.settimeout(0.05)
        reply = b""
        for _ in range(200):
            with contextlib.suppress(TimeoutError):
                reply += opened.recv(4096)
            if reply:
                break
            opened.sendall(b"a")
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert engine.requests == []


def test_a_connection_without_a_request_is_closed_without_a_reply(serve: Serve) -> None:
    with connection(serve(receive_timeout_s=0.1)) as opened:
        assert rest(opened) == b""


def test_the_body_of_a_refused_request_has_a_timeout_too(serve: Serve) -> None:
    with connection(serve(receive_timeout_s=0.2)) as opened:
        opened.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        reply = rest(opened)
    assert reply.startswith(b"HTTP/1.1 404 ")
    assert reply.count(b"HTTP/1.1") == 1


def test_a_connection_stays_open_between_requests(serve: Serve) -> None:
    with connection(serve(receive_timeout_s=0.1)) as opened:
        opened.sendall(GET)
        assert b" 200 " in answer(opened)
        opened.settimeout(0.5)
        with pytest.raises(TimeoutError):  # the timeout of a first request no longer applies
            opened.recv(1)
        opened.sendall(GET)
        opened.settimeout(20)
        assert b" 200 " in answer(opened)


@pytest.mark.slow
def test_a_response_may_take_longer_than_the_receive_timeout(serve: Serve, engine: ScriptedEngine) -> None:
    engine.held = True
    url = serve(receive_timeout_s=1.0)
    with httpx.Client(base_url=url, timeout=20) as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json={"prompt": "x"}, timeout=2.0)


@pytest.mark.parametrize(
    "head", [HEAD + b"X-Long: " + b"a" * (2 * MAX_HEAD_BYTES), HEAD + b"A: b\r\n" * (MAX_HEADERS + 1)]
)
def test_an_endless_head_is_431(serve: Serve, head: bytes) -> None:
    with connection(serve()) as opened:
        with contextlib.suppress(ConnectionError):
            opened.sendall(head + b"\r\n\r\n")
        status, error = refusal(rest(opened))
    assert (status, error["type"]) == (431, "invalid_request_error")


def test_a_large_body_does_not_count_as_head(serve: Serve) -> None:
    body = json.dumps({"prompt": "x", "user": "u" * 2 * MAX_HEAD_BYTES}).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with connection(serve()) as opened:
        opened.sendall(GET + request)  # the head of the second arrives with the first
        received = b""
        while received.count(b"HTTP/1.1 200 ") < 2:
            received += opened.recv(65536)


def test_too_many_connections_are_503_except_for_probes(serve: Serve) -> None:
    url = serve(max_connections=2)
    with connection(url) as first, connection(url) as second:
        for opened in (first, second):
            opened.sendall(GET)
            assert b" 200 " in answer(opened)
        with connection(url) as third:
            third.sendall(GET)
            reply = rest(third)
            status, error = refusal(reply)
            assert (status, error["type"], error["code"]) == (503, "overloaded_error", "too_many_connections")
            assert b"\r\nretry-after: 1\r\n" in reply
        with connection(url) as probe:
            probe.sendall(b"GET /health?full HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in answer(probe)
        first.sendall(GET)
        assert b" 200 " in answer(first)
    with httpx.Client(base_url=url, timeout=20) as client:
        for _ in range(50):  # the server notices closed connections only in a later loop iteration
            if client.get("/version", headers={"connection": "close"}).status_code == 200:
                break
        else:
            raise AssertionError("the places were not given back")


def test_connections_far_above_the_limit_are_closed_without_a_reply(serve: Serve) -> None:
    url = serve(max_connections=1)
    with contextlib.ExitStack() as opened:
        for _ in range(OVERFLOW_CONNECTIONS + 1):
            opened.enter_context(connection(url))
        with connection(url) as last:
            assert rest(last) == b""


def test_a_refusal_is_sent_after_the_answer_to_an_earlier_request(serve: Serve, engine: ScriptedEngine) -> None:
    engine.held = True
    with connection(serve(receive_timeout_s=0.2)) as opened:
        opened.sendall(POST)
        assert engine.heard.wait(20)
        opened.sendall(b"no http at all\r\n\r\n")
        engine.release()
        first, _, second = rest(opened).partition(b"HTTP/1.1 4")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert refusal(b"HTTP/1.1 4" + second)[0] == 400


def test_uvicorn_has_the_internals_that_the_protocol_uses() -> None:
    config = uvicorn.Config(lambda scope: None, log_config=None, loop="asyncio")
    with asyncio.Runner() as runner:
        protocol = HttpToolsProtocol(config, ServerState(), {}, runner.get_loop())
        protocol.on_message_begin()
    assert vars(protocol).keys() >= ATTRIBUTES
    assert callable(protocol._unset_keepalive_if_required)
    assert all(name in vars(HttpToolsProtocol) for name in OVERRIDDEN)
    assert set(RequestResponseCycle.__init__.__code__.co_names) >= CYCLE
    assert "read_paused" in FlowControl.__init__.__code__.co_names
    assert all(callable(getattr(uvicorn.Server, name)) for name in ("capture_signals", "main_loop", "on_tick", "serve"))
    assert callable(config.get_loop_factory)


def test_the_list_of_uvicorns_internals_is_complete() -> None:
    tree = ast.parse(inspect.getsource(WireProtocol))
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"]
    assert {node.attr for node in used if not node.attr.startswith("_")} == ATTRIBUTES
    assert set(vars(WireProtocol)) & set(dir(HttpToolsProtocol)) - set(dir(object)) - {"__module__"} == set(OVERRIDDEN)


def test_uvicorn_is_bounded_to_the_tested_minor_version() -> None:
    (tested,) = re.findall(r"^uvicorn==0\.(\d+)\.", (PYPROJECT.parent / "constraints.txt").read_text(), re.MULTILINE)
    assert f'"uvicorn[standard]>=0.36,<0.{int(tested) + 1}"' in PYPROJECT.read_text()


def test_keep_alive_is_longer_than_that_of_client_pools() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    assert http_server(app, None).config.timeout_keep_alive >= 75
