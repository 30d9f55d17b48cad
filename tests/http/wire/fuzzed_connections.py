"""Random input for connections, derived from a seed: requests that must be answered, sometimes followed by garbage."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

PROMPT = {"prompt": "an honest question", "max_tokens": 4, "temperature": 0}
OFFERS = (
    [(b"Connection", b"Upgrade, HTTP2-Settings"), (b"Upgrade", b"h2c"), (b"HTTP2-Settings", b"AAEAAEAAAAIAAAAB")],
    [(b"Upgrade", b"websocket"), (b"Connection", b"keep-alive, Upgrade"), (b"Sec-WebSocket-Version", b"13")],
)
BAD_SIZES = (b"-1\r\n", b"fffffffffffffffff\r\n", b"g\r\n", b"\r\n", b"1\r\nxx\r\n", b" 1\r\n")
BAD_TARGETS = (b"OPTIONS * HTTP/1.1", b"GET http://x HTTP/1.1", b"GET x HTTP/1.1", b"GET /", b"GET  / HTTP/1.1")
HARMLESS = [
    (b"User-Agent", b"fuzz"), (b"accept", b"*/*"), (b"X-Request-Id", b"a.b-c"), (b"Cookie", b"x=" + b"y" * 3000),
    (b"X-Empty", b""), (b"X-Latin", b"\xe9\xff"), (b"X-Colon", b"a:b:c"), (b"X-Tab", b"a\tb"),
]  # fmt: skip


@dataclass
class Request:
    """One request on the wire. status: status of its answer; None if the status is not determined."""

    method: bytes
    path: bytes
    status: int | None
    body: bytes | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    version: bytes = b"HTTP/1.1"
    framed: bytes = b""

    @property
    def ends_connection(self) -> bool:
        """True if the server closes the connection after the answer."""
        return self.version != b"HTTP/1.1" or (b"Connection", b"close") in self.headers

    def encode(self) -> bytes:
        lines = [b"%s %s %s" % (self.method, self.path, self.version)]
        lines += [name + b": " + value for name, value in self.headers]
        return b"\r\n".join([*lines, b"", b""]) + self.framed


@dataclass
class Dialogue:
    """The input of one connection.

    Attributes:
        requests: are answered in this order
        garbage: sent after them
        pieces: all of it as it is sent
        ending: "wait" for the server to close, "half" closes the output first, "reset" or "close" at once
    """

    requests: list[Request]
    garbage: bytes
    pieces: list[bytes]
    ending: str

    @property
    def stays_open(self) -> bool:
        """True if the server waits for a further request at the end."""
        is_open = not self.requests or not self.requests[-1].ends_connection
        return is_open and not self.garbage and self.ending == "wait"


def dialogue(seed: int) -> Dialogue:
    """Return the dialogue of this seed."""
    rng = random.Random(seed)
    requests: list[Request] = []
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 8])):
        requests.append(_good(rng))
        if requests[-1].ends_connection:
            break
    is_open = not requests or not requests[-1].ends_connection
    garbage = _garbage(rng) if is_open and rng.random() < 0.6 else b""
    sent = b"".join(request.encode() for request in requests) + garbage
    ending = rng.choice(["wait", "half", "half", "reset", "close"])
    if ending == "half" and any(request.version != b"HTTP/1.1" for request in requests):
        ending = "wait"  # the server does not keep a half-closed connection of an HTTP/1.0 client open for long
    return Dialogue(requests, garbage, _split(rng, sent), ending)


def _good(rng: random.Random) -> Request:
    """A request whose answer is known."""
    choices: list[Callable[[], Request]] = [
        lambda: Request(rng.choice([b"GET", b"HEAD"]), rng.choice([b"/version", b"/health?x", b"/v1/models"]), 200),
        lambda: Request(b"GET", rng.choice([b"/nothing", b"/%00", b"//", b"/" + b"a" * 5000]), 404),
        lambda: Request(b"DELETE", b"/v1/completions", 405),
        lambda: Request(b"POST", b"/v1/completions", 200, json.dumps(PROMPT).encode()),
        lambda: Request(b"POST", b"/v1/completions", 200, json.dumps({**PROMPT, "stream": True}).encode()),
        lambda: Request(b"POST", b"/v1/completions", 400, rng.randbytes(rng.choice([1, 100, 70_000]))),
        lambda: Request(b"POST", b"/nothing", 404, b"x" * rng.choice([0, 1, 100, 100_000])),
    ]
    made = rng.choice(choices)()
    made.headers = [(b"Host", b"x"), *rng.sample(HARMLESS, rng.randrange(4))]
    if made.method == b"POST":
        made.headers.append((b"content-type", b"application/json"))
    if rng.random() < 0.2:
        made.headers += rng.choice(OFFERS)
    elif rng.random() < 0.1:
        made.headers.append((b"Connection", b"close"))
    if made.body is not None:
        _frame(rng, made, made.body)
    if rng.random() < 0.1 and (b"Transfer-Encoding", b"chunked") not in made.headers:
        made.version = b"HTTP/1.0"
    return made


def _frame(rng: random.Random, made: Request, body: bytes) -> None:
    if rng.random() < 0.15:
        made.headers.append((b"Expect", b"100-continue"))
    if rng.random() < 0.5:
        made.headers.append((b"Content-Length", b"%d" % len(body)))
        made.framed = body
        return
    made.headers.append((b"Transfer-Encoding", b"chunked"))
    size, position, chunks = rng.choice([1, 7, 1000, 65_536]) if len(body) < 5000 else 10_000, 0, []
    while position < len(body):
        part = body[position : position + rng.randint(1, size)]
        extension = rng.choice([b"", b"", b"", b";a=b", b';q="x y"'])
        chunks.append(b"%s%x%s\r\n%s\r\n" % (b"0" * rng.choice([0, 0, 3]), len(part), extension, part))
        position += len(part)
    trailers = rng.choice([b"", b"", b"X-Trailer: 1\r\n", b"X-Request-Id: 5\r\n", b"t: " + b"u" * 2000 + b"\r\n"])
    made.framed = b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


def _mutated(rng: random.Random) -> bytes:
    sent = bytearray(_good(rng).encode())
    for _ in range(rng.choice([1, 1, 2, 5, 50])):
        position = rng.randrange(len(sent) or 1)
        end = position + rng.choice([0, 1, 1, 4, 400])
        sent[position:end] = rng.choice(
            [b"", rng.randbytes(1), rng.randbytes(9), b"\r\n", b"\n", b":", b"\x00", b"0" * 40]
        )
    return bytes(sent)


def _garbage(rng: random.Random) -> bytes:
    """Return bytes that are not a request, or only the beginning of one."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    whole = _good(rng).encode()
    choices: list[Callable[[], bytes]] = [
        lambda: rng.randbytes(rng.choice([1, 10, 1000, 100_000])),
        lambda: whole[: rng.randrange(len(whole))],
        lambda: head + b"X: " + b"a" * rng.choice([60_000, 70_000, 300_000]),
        lambda: head + b"".join(b"H%d: v\r\n" % number for number in range(rng.choice([100, 128, 400]))) + b"\r\n",
        lambda: chunked + b"0\r\n" + b"T: " + b"t" * rng.choice([1000, 300_000]),
        lambda: chunked + b"1;" + b"e" * rng.choice([1000, 300_000]),
        lambda: chunked + b"1;e=" + b"1\r\nx\r\n" * 30_000,
        lambda: chunked + rng.choice(BAD_SIZES),
        lambda: head + b"Content-Length: " + rng.choice([b"-1", b"9" * 30, b"1 1", b"0x1", b"", b"+1"]) + b"\r\n\r\n",
        lambda: head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        lambda: head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        lambda: head + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
        lambda: head + b"Host: y\r\nContent-Length: 2\r\n\r\n{}",
        lambda: head + b"Content-Type: text/plain\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\n{}",
        lambda: chunked.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
        lambda: head + b" folded: x\r\n\r\n",
        lambda: b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n" + rng.randbytes(50),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
        lambda: b"\r\n" * rng.choice([1, 50_000]),
        lambda: b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * rng.choice([40, 3000]),
        lambda: rng.choice(BAD_TARGETS) + b"\r\n\r\n",
    ]  # fmt: skip
    return _mutated(rng) if rng.random() < 0.5 else rng.choice(choices)()


def _split(rng: random.Random, sent: bytes) -> list[bytes]:
    """Cut ``sent`` into the pieces that are sent separately."""
    kind = rng.choice(["whole", "whole", "few", "start", "bytes"])
    if kind == "bytes" and len(sent) < 600:
        return [sent[at : at + 1] for at in range(len(sent))]
    count = 0 if kind == "whole" else rng.choice([1, 2, 5, 20])
    reach = min(len(sent), 300) if kind == "start" else len(sent)
    cuts = sorted(rng.randrange(reach + 1) for _ in range(count))
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True) if start < end]
