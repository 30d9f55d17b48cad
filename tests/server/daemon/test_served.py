"""The application behind a real socket: the official client, disconnects, slow readers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from ebbtide.config import ServerConfig

from ..conftest import Served

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def until(served: Served, claim: Callable[[], bool], *, seconds: int = 1) -> None:
    """Wait up to ``seconds`` for ``claim`` to hold; check it after each message to the engine."""
    for _ in range(50 * seconds):
        served.engine.heard.clear()
        if claim():
            return
        served.engine.heard.wait(0.02)
    raise AssertionError(f"it did not happen within {seconds} s")


def raw_request(served: Served, body: dict[str, Any], *, read_until: bytes = b"") -> socket.socket:
    """Open a connection, send a chat request, and read up to ``read_until``."""
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    data = json.dumps({"messages": MESSAGES, **body}).encode()
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    head += [f"Content-Length: {len(data)}", "", ""]
    connection.sendall("\r\n".join(head).encode() + data)
    received = b""
    while read_until not in received:
        received += connection.recv(4096)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_ends_the_request(served: Served, stream: bool) -> None:
    served.engine.held = True
    connection = raw_request(served, {"stream": stream, "n": 2})
    until(served, lambda: bool(served.engine.requests))
    rids = served.engine.requests[0].rids
    if stream:
        served.on_loop(lambda: served.engine.emit(rids[0], "He", 1))
        while b'"He"' not in connection.recv(4096):
            pass
    assert served.engine.aborts == []
    connection.close()
    until(served, lambda: {abort.rid for abort in served.engine.aborts} == set(rids))
    until(served, lambda: served.state.manager.num_open == 0)
    served.on_loop(lambda: served.engine.emit(rids[0], "late", 2, finish="stop"))
    assert httpx.get(served.url + "/health").status_code == 200


def test_many_disconnects_leave_no_open_request(served: Served) -> None:
    served.engine.held = True
    for round_number in range(30):
        raw_request(served, {"stream": round_number % 2 == 0}).close()
    assert httpx.get(served.url + "/health").status_code == 200, "accepted after all of them"
    until(served, lambda: len(served.engine.aborts) == len(served.engine.requests))
    until(served, lambda: served.state.manager.num_open == 0)
    served.engine.held = False
    assert openai.OpenAI(base_url=served.url + "/v1", api_key="x").chat.completions.create(
        model="org/sim", messages=MESSAGES
    )


def test_a_paused_reader_gets_everything_and_buffers_only_text(served: Served) -> None:
    served.engine.held = True
    connection = raw_request(served, {"stream": True})
    until(served, lambda: bool(served.engine.requests))
    [rid] = served.engine.requests[0].rids
    text = "x" * 2000

    def speak() -> None:
        for number in range(1, 1001):
            served.engine.emit(rid, text, number, finish="stop" if number == 1000 else None)

    served.on_loop(speak)
    received = b""
    while b"[DONE]" not in received[-100:]:
        received += connection.recv(1 << 16)
    connection.close()
    lines = [line for line in received.split(b"\n") if line.startswith(b"data: {")]
    chunks = [json.loads(line[6:]) for line in lines]
    assert sum(len(chunk["choices"][0]["delta"].get("content", "")) for chunk in chunks) == 2_000_000
    assert len(chunks) < 1000, "what was not read yet is joined"


def all_that_comes(connection: socket.socket) -> bytes:
    """Read until the connection is closed or reset."""
    received = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            received += chunk
    return received


@pytest.mark.slow
@pytest.mark.parametrize("config", [ServerConfig(slow_reader_timeout=0.5)], ids=["half a second"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_that_stops_reading_is_disconnected(served: Served, stream: bool) -> None:
    served.engine.held = True
    connection = raw_request(served, {"stream": stream})
    until(served, lambda: bool(served.engine.requests))
    [rid] = served.engine.requests[0].rids
    size = 8_000_000  # more than both kernel buffers hold

    def speak() -> None:
        served.engine.emit(rid, "x" * size, 1, finish=None if stream else "stop")

    served.on_loop(speak)
    until(served, lambda: not served.state.manager.num_open, seconds=20)
    assert [abort.rid for abort in served.engine.aborts] == ([rid] if stream else [])
    assert httpx.get(served.url + "/health").status_code == 200, "no other client is delayed"
    time.sleep(1.5)  # the elapsed time is under test
    received = all_that_comes(connection)
    assert 0 < len(received) < size
    assert b"[DONE]" not in received


def test_the_official_client_works_unmodified(served: Served) -> None:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0) as client:
        whole: Any = client.chat.completions.create(model="org/sim", messages=MESSAGES, logprobs=True, top_logprobs=2)
        assert whole.choices[0].message.content == "Hello!"
        assert whole.choices[0].logprobs.content[0].top_logprobs[0].token == "0.0"
        chunks: list[Any] = list(
            client.chat.completions.create(
                model="org/sim", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
            )
        )
        assert chunks[-1].usage.completion_tokens == 12
        texts = ["", ""]
        for chunk in chunks[:-1]:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert texts == ["Hello!", "Hello!"]
        assert client.completions.create(model="org/sim", prompt=["a", "b"]).choices[1].text == "Hello!"
        assert "".join(c.choices[0].text for c in client.completions.create(model="org/sim", prompt="a", stream=True))
        assert client.models.list().data[0].id == "org/sim"
        assert client.models.retrieve("org/sim").id == "org/sim"


def test_the_official_accumulator_ends_with_the_whole_answer(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0)
    with client, client.chat.completions.stream(model="org/sim", messages=MESSAGES, logprobs=True) as stream:
        final: Any = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello!"
    assert final.choices[0].message.role == "assistant"
    assert len(final.choices[0].logprobs.content) == 6


def test_the_official_async_client_works_unmodified(served: Served) -> None:
    async def talk() -> str:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0) as client:
            whole = await client.chat.completions.create(model="org/sim", messages=MESSAGES)
            stream = await client.chat.completions.create(model="org/sim", messages=MESSAGES, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == whole.choices[0].message.content
            many = [client.chat.completions.create(model="org/sim", messages=MESSAGES) for _ in range(20)]
            assert {answer.choices[0].message.content for answer in await asyncio.gather(*many)} == {"Hello!"}
            return text

    assert asyncio.run(talk()) == "Hello!"


def test_the_official_client_reads_our_errors(served: Served) -> None:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=2) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="org/sim", messages=MESSAGES, max_tokens=10**9)
        assert refused.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt-4", messages=MESSAGES)
        assert missing.value.param == "model"
        served.engine.answer = lambda request: served.engine.abort(request.rids[0])
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="org/sim", messages=MESSAGES)
        assert len(served.engine.requests) == 1, "x-should-retry: false was obeyed"


def test_the_official_client_raises_on_an_error_in_a_stream(served: Served) -> None:
    def answer(request: Any) -> None:
        served.engine.emit(request.rids[0], "He", 1)
        served.engine.abort(request.rids[0], num=1)
        served.engine.emit(request.rids[0], "", 1, finish="abort")

    served.engine.answer = answer
    with openai.OpenAI(base_url=served.url + "/v1", api_key="x") as client:
        stream = client.chat.completions.create(model="org/sim", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="no room"):
            for _ in stream:
                pass


def test_health_answers_while_a_large_body_is_read(served: Served) -> None:
    body = json.dumps({"prompt": [1] * 60_000})
    failures: list[int] = []

    def post() -> None:
        reply = httpx.post(
            served.url + "/v1/completions", content=body, headers={"content-type": "application/json"}, timeout=30
        )
        if reply.status_code != 400:
            failures.append(reply.status_code)

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert httpx.get(served.url + "/health", timeout=5).status_code == 200
    for thread in threads:
        thread.join()
    assert failures == []


def test_input_that_is_not_http_is_refused_with_an_error_object(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"BREW /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: " in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_an_exception_is_logged_once_and_ends_its_connection(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    def fail(message: object) -> bool:
        raise RuntimeError("broken")

    served.engine.send = fail  # type: ignore[method-assign]
    with httpx.Client(base_url=served.url) as client:
        reply = client.post("/v1/completions", json={"prompt": "x"})
        assert reply.status_code == 500
        assert reply.headers["connection"] == "close"
        assert client.get("/version").status_code == 200
    assert [record.exc_info is not None for record in caplog.records] == [True]
