"""Heads on whose meaning two recipients could disagree, over real sockets."""

from __future__ import annotations

import pytest

from ..conftest import ScriptedEngine
from .conftest import Serve
from .raw_connection import BODY, POST, answer, connection, refusal, rest

CHUNKS = b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
START = b"POST /v1/completions HTTP/1.1\r\n"
OLD = START.replace(b"1.1", b"1.0")
JSON = b"Content-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = b"\r\n" + BODY
CODING = b"Transfer-Encoding: "
REFUSED = {
    "no host": (START + JSON + LENGTH + PLAIN, 400),
    "two hosts": (START + b"Host: a\r\n" + JSON + b"host: b\r\n" + LENGTH + PLAIN, 400),
    "one host twice": (START + b"Host: a\r\nHost: a\r\n" + JSON + LENGTH + PLAIN, 400),
    "an old request with two hosts": (OLD + b"Host: a\r\nHost: b\r\n" + JSON + LENGTH + PLAIN, 400),
    **{
        f"the host {host!r}": (START + b"Host: " + host + b"\r\n" + JSON + LENGTH + PLAIN, 400)
        for host in (
            b"a b",
            b"a/b",
            b"a, b",
            b"u@a",
            b"a:80:81",
            b"a:x",
            b"[::1",
            b"a]",
            b"a\\b",
            b"a?b",
            b"%zz",
            b"\xc3\xa4",
        )
    },
    "an old request with a bad host": (OLD + b"Host: a b\r\n" + JSON + LENGTH + PLAIN, 400),
    "gzip, chunked": (START + b"Host: a\r\n" + JSON + CODING + b"gzip, chunked\r\n" + CHUNKS, 501),
    "gzip and chunked": (START + b"Host: a\r\n" + JSON + CODING + b"gzip\r\n" + CODING + b"chunked\r\n" + CHUNKS, 501),
    "gzip": (START + b"Host: a\r\n" + JSON + CODING + b"gzip\r\n" + CHUNKS, 501),
    "identity": (START + b"Host: a\r\n" + JSON + CODING + b"identity\r\n" + CHUNKS, 501),
    "an old request with chunks": (OLD + JSON + CODING + b"chunked\r\n" + CHUNKS, 400),
    "an old request with gzip": (OLD + JSON + CODING + b"gzip\r\n" + CHUNKS, 400),
    "two content types": (START + b"Host: a\r\n" + JSON + b"Content-Type: text/plain\r\n" + LENGTH + PLAIN, 400),
}
ACCEPTED = {
    "an old request without host": OLD + JSON + LENGTH + PLAIN,
    "an empty host": START + b"Host:\r\n" + JSON + LENGTH + PLAIN,
    **{
        f"the host {host!r}": START + b"Host: " + host + b"\r\n" + JSON + LENGTH + PLAIN
        for host in (
            b"A.example:80",
            b"a_b",
            b"127.0.0.1:8000",
            b"[::1]:8000",
            b"[fe80::1%25eth0]",
            b"a:",
            b"%C3%A4.example",
        )
    },
    "a coding in capitals": START + b"Host: a\r\n" + JSON + CODING + b"Chunked \r\n" + CHUNKS,
    "one content type twice": START + b"Host: a\r\n" + JSON + JSON + LENGTH + PLAIN,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_an_ambiguous_head_is_refused_once(serve: Serve, engine: ScriptedEngine, name: str) -> None:
    """The refusal closes the connection, and the bytes after the head are not another request."""
    sent, status = REFUSED[name]
    with connection(serve()) as opened:
        opened.sendall(sent + POST)
        reply = rest(opened)
    assert refusal(reply)[0] == status
    assert engine.requests == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_clear_head_is_accepted(serve: Serve, name: str) -> None:
    with connection(serve()) as opened:
        opened.sendall(ACCEPTED[name])
        assert answer(opened).startswith(b"HTTP/1.1 200 ")
