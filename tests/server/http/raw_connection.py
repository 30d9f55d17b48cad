"""Raw sockets, to send requests byte by byte and to read the replies."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator

GET = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "x"}'
POST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@contextlib.contextmanager
def connection(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        yield opened


def rest(opened: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := opened.recv(65536):
            received += chunk
    return received


def answer(opened: socket.socket) -> bytes:
    """Read one complete reply; the connection stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += opened.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = re.findall(rb"\r\ncontent-length: (\d+)", head)
    while len(body) < int(length):
        body += opened.recv(65536)
    return head + b"\r\n\r\n" + body


def refusal(reply: bytes) -> tuple[int, dict[str, object]]:
    """Return status and error of a reply; nothing may follow it."""
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert b"connection: close" in lines
    assert any(line.startswith(b"x-request-id: ") for line in lines)
    return int(lines[0].split()[1]), json.loads(body)["error"]
