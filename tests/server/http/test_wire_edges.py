"""Upgrade offers, HTTP/1.0, bytes that are not body, pipelining and half-closed connections, on real sockets."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from functools import partial

import pytest

from ebbtide.server.http.arriving_request import MAX_HEAD_BYTES
from ebbtide.server.http.wire_protocol import MAX_PIPELINED

from ..conftest import ScriptedEngine
from .conftest import Serve
from .raw_connection import BODY, GET, HEAD, POST, answer, connection, refusal, rest

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n" % (len(BODY), BODY)
STREAM_BODY = b'{"prompt": "x", "stream": true}'
STREAM = HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM_BODY) + STREAM_BODY
OLD_POST = POST.replace(b"HTTP/1.1", b"HTTP/1.0")
MOST = 8 << 20  # more than the buffers of both kernels
OFFERS = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    b"Upgrade: websocket\r\nConnection: keep-alive, upgrade\r\nSec-WebSocket-Version: 13\r\n",
    b"Connection: upgrade\r\nUpgrade: TLS/1.2\r\n",
)


def with_lines(request: bytes, lines: bytes) -> bytes:
    head, _, rest_of_it = request.partition(b"\r\n\r\n")
    return head + b"\r\n" + lines + b"\r\n" + rest_of_it


def test_an_upgrade_offer_is_ignored(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    url = serve()
    for offer, sent in itertools.product(OFFERS, (POST, CHUNKED + b"0\r\n\r\n", GET)):
        with connection(url) as opened:
            for request in (with_lines(sent, offer), with_lines(sent, offer), GET):
                opened.sendall(request)
                assert answer(opened).startswith(b"HTTP/1.1 200 ")
    assert caplog.text == ""


def test_an_upgrade_offer_may_arrive_byte_by_byte_and_pipelined(serve: Serve, engine: ScriptedEngine) -> None:
    sent = with_lines(POST, OFFERS[0])
    with connection(serve()) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(sent)):
            opened.sendall(sent[position : position + 1])
        assert answer(opened).startswith(b"HTTP/1.1 200 ")
        opened.sendall(sent * 5)
        received = b""
        while received.count(b"HTTP/1.1 200 ") < 5:
            received += opened.recv(65536)
    assert [len(request.prompt) for request in engine.requests] == [len(engine.requests[0].prompt)] * 6


def test_connect_is_refused(serve: Serve) -> None:
    url = serve()
    for target in (b"x:80", b"/version"):
        with connection(url) as opened:
            opened.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nHost: x\r\n\r\nfurther bytes")
            assert refusal(rest(opened))[0] == 400


def test_an_old_client_gets_a_plain_body_that_ends_with_the_connection(serve: Serve) -> None:
    url = serve()
    for version, line in itertools.product((b"HTTP/1.0", b"HTTP/0.9"), (b"", b"Connection: keep-alive\r\n")):
        heads, bodies = [], []
        for sent in (STREAM, POST, b"HEAD /version HTTP/1.1\r\n\r\n"):
            with connection(url) as opened:
                opened.sendall(with_lines(sent, line).replace(b"HTTP/1.1", version))
                head, _, body = rest(opened).partition(b"\r\n\r\n")
            heads.append(head)
            bodies.append(body)
        assert all(head.startswith(b"HTTP/1.1 200 ") and b"\r\nconnection: close" in head for head in heads)
        assert not any(b"chunked" in head.lower() for head in heads)
        events = bodies[0].split(b"\n\n")
        assert all(event.startswith(b"data: ") for event in events[:-1])
        assert events[-2:] == [b"data: [DONE]", b""]
        assert json.loads(bodies[1])["choices"][0]["text"] == "Hello!"
        assert bodies[2] == b""


def send_until_closed(opened: socket.socket, first: bytes, repeated: bytes, most: int) -> tuple[int, bytes]:
    """Send ``repeated`` until the server closes or ``most`` bytes are sent. Returns the sent bytes and the replies."""
    opened.sendall(first)
    opened.settimeout(0.005)
    sent, reply = len(first), b""
    with contextlib.suppress(ConnectionError):
        while sent < most:
            with contextlib.suppress(TimeoutError):
                sent += opened.send(repeated)
            with contextlib.suppress(TimeoutError):
                received = opened.recv(65536)
                if not received:
                    break
                reply += received
    return sent, reply


FLOODS = {
    "trailers": (CHUNKED + b"0\r\n", b"X-Trailer: " + b"t" * 4000 + b"\r\n"),
    "one trailer": (CHUNKED + b"0\r\nX-Trailer: ", b"t" * 4000),
    "one extension": (CHUNKED + b"1;extension=", b"e" * 4000),
    "extensions": (CHUNKED, b"1;e=" + b"e" * 4000 + b"\r\n \r\n"),
    "size lines": (CHUNKED, b"00000000000000000000000000000001\r\n \r\n" * 100),
}


def test_bytes_that_are_not_body_are_limited(serve: Serve, engine: ScriptedEngine) -> None:
    """The same holds for a request that the application has answered before its body arrived."""
    url = serve()
    for name, (first, repeated) in FLOODS.items():
        with connection(url) as opened:
            sent, reply = send_until_closed(opened, first, repeated, MOST)
        assert sent < MOST, name
        assert reply.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), name
        assert reply.count(b"HTTP/1.1") == 1, name
        with connection(url) as opened:
            sent, reply = send_until_closed(opened, first.replace(b"completions", b"nothing"), repeated, MOST)
        assert sent < MOST, name
        assert reply.startswith(b"HTTP/1.1 404 "), name
        assert reply.count(b"HTTP/1.1") == 1, name
    assert engine.requests == []


def test_a_large_body_may_come_in_small_chunks(serve: Serve) -> None:
    body = json.dumps({"prompt": "x", "user": "u" * 180_000}).encode()
    chunks = b"".join(b"100\r\n" + body[at : at + 256].ljust(256) + b"\r\n" for at in range(0, len(body), 256))
    with connection(serve()) as opened:
        opened.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX-Checksum: 1\r\n\r\n")
        assert answer(opened).startswith(b"HTTP/1.1 200 ")


def test_trailers_change_no_header(serve: Serve) -> None:
    trailers = b"0\r\nX-Request-Id: from-the-trailer\r\nContent-Type: text/plain\r\n\r\n"
    with connection(serve()) as opened:
        opened.sendall(CHUNKED + trailers + GET)
        first, _, second = (answer(opened) + b"|").partition(b"|")
        second += answer(opened) if b"HTTP/1.1" not in first.removeprefix(b"HTTP/1.1") else b""
    assert first.startswith(b"HTTP/1.1 200 ")
    assert b"from-the-trailer" not in first + second


@pytest.mark.parametrize(
    "trickle",
    [b"t", b"\r\n"],
    ids=["trailer", "empty lines before a request"],
)
def test_slow_bytes_that_are_not_body_do_not_extend_the_timeout(serve: Serve, trickle: bytes) -> None:
    with connection(serve(receive_timeout_s=0.3)) as opened:
        opened.sendall(CHUNKED + b"0\r\nX-Slow: " if trickle == b"t" else trickle)
        opened.settimeout(0.01)
        reply, closed, started = b"", False, time.monotonic()
        while not reply and not closed and time.monotonic() < started + 20:
            try:
                reply = opened.recv(65536)
                closed = not reply
            except TimeoutError:
                with contextlib.suppress(ConnectionError):
                    opened.sendall(trickle * 500 if trickle == b"t" else trickle)
            except ConnectionError:
                closed = True
    assert reply.startswith(b"HTTP/1.1 4") if trickle == b"t" else (closed and not reply)
    assert time.monotonic() < started + 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "status"),
    [
        (HEAD + b"X-Long: " + b"a" * (2 * MAX_HEAD_BYTES) + b"\r\n\r\n", 431),
        (HEAD + b"A: b\r\n" * 200 + b"\r\n", 431),
        (HEAD + b"Content-Length: 9\r\n\r\n{", 408),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nno size", 400),
        (b"no http\r\n\r\n", 400),
        (GET * (MAX_PIPELINED + 2), 429),
    ],
)
def test_a_refusal_keeps_the_order_of_pipelined_answers(
    serve: Serve, engine: ScriptedEngine, second: bytes, status: int
) -> None:
    engine.held = True
    with connection(serve(receive_timeout_s=0.2)) as opened:
        opened.sendall(POST + second)
        assert engine.heard.wait(20)
        opened.settimeout(0.3)
        with pytest.raises(TimeoutError):
            opened.recv(1)
        engine.release()
        opened.settimeout(20)
        replies = rest(opened).split(b"HTTP/1.1 ")[1:]
    assert [int(reply[:3]) for reply in (replies[0], replies[-1])] == [200, status]
    assert len(replies) == (2 + MAX_PIPELINED if status == 429 else 2)


def test_an_incomplete_request_is_answered_once(serve: Serve, engine: ScriptedEngine) -> None:
    """The application must not answer a request that was refused while its body arrived."""
    with connection(serve()) as opened:
        opened.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nno size\r\n")
        assert refusal(rest(opened))[0] == 400
    assert engine.requests == []


def test_an_early_answer_that_ends_the_connection_is_not_lost(serve: Serve) -> None:
    """The body is still being sent when the answer comes; closing at once would reset the connection."""
    url = serve()
    for line, status in ((b"Connection: close\r\n", b"404"), (b"", b"413")):
        path = b"/v1/completions" if status == b"413" else b"/nothing"
        head = HEAD.replace(b"/v1/completions", path) + line + b"Content-Length: %d\r\n\r\n" % MOST
        for _ in range(10):
            with connection(url) as opened:
                with contextlib.suppress(ConnectionError):
                    opened.sendall(head + b"x" * MOST)
                assert rest(opened).startswith(b"HTTP/1.1 " + status)


def test_a_refusal_drops_an_expected_interim_response(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with connection(serve()) as opened:
        opened.sendall(HEAD + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n")
        assert refusal(rest(opened))[0] == 400
    assert caplog.text == ""


def test_a_half_closed_client_gets_its_answer(serve: Serve) -> None:
    url = serve()
    for sent, expected in ((POST, b"Hello!"), (STREAM, b"[DONE]"), (GET, b"version"), (OLD_POST, b"Hello!")):
        with connection(url) as opened:
            opened.sendall(sent)
            opened.shutdown(socket.SHUT_WR)
            reply = rest(opened).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")  # interim responses may come first
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert expected in reply


@pytest.mark.parametrize("request_bytes", [POST, STREAM])
def test_a_half_closed_client_may_wait_for_its_answer(
    serve: Serve, engine: ScriptedEngine, request_bytes: bytes
) -> None:
    """Interim responses may come first. A request that is not complete is not answered."""
    engine.held = True
    with connection(serve()) as opened:
        opened.sendall(request_bytes + GET + GET[:20])
        opened.shutdown(socket.SHUT_WR)
        assert engine.heard.wait(20)
        assert opened.recv(8) == b"HTTP/1.1"
        engine.release()
        replies = rest(opened).split(b"HTTP/1.1 ")
    answers = [reply[:3] for reply in replies if not reply.strip().startswith(b"100 ")]
    assert answers == [b"200", b"200"]
    assert not engine.aborts


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_half_closed_client_reads_comments_while_its_stream_waits(
    serve: Serve, engine: ScriptedEngine, version: bytes
) -> None:
    engine.held = True
    with connection(serve()) as opened:
        opened.sendall(STREAM.replace(b"HTTP/1.1", b"HTTP/" + version))
        assert engine.heard.wait(20)
        assert engine.loop is not None
        [rid] = engine.requests[0].rids
        engine.loop.call_soon_threadsafe(engine.emit, rid, "H", 1)
        received = b""
        while b"data: " not in received:
            received += opened.recv(4096)
        opened.shutdown(socket.SHUT_WR)
        while b"\n:\n" not in received:
            received += opened.recv(4096)
        engine.loop.call_soon_threadsafe(partial(engine.emit, rid, "i", 2, finish="stop"))
        received += rest(opened)
    assert b"[DONE]" in received
    assert not engine.aborts


def test_a_client_that_has_left_ends_its_request(serve: Serve, engine: ScriptedEngine) -> None:
    engine.held = True
    url = serve()
    for sent in (POST, STREAM, POST + GET, OLD_POST):
        engine.heard.clear()
        engine.aborts.clear()
        with connection(url) as opened:
            opened.sendall(sent)
            assert engine.heard.wait(20)
        deadline = time.monotonic() + 10
        with connection(url) as other:
            while not engine.aborts and time.monotonic() < deadline:
                other.sendall(GET)
                answer(other)
        assert [abort.reason for abort in engine.aborts] == ["client"]
