"""Plays the dialogues of ``fuzzed_connections`` against a server and checks the responses."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from .fuzzed_connections import Dialogue, Request, dialogue

PATIENCE_S = 60.0
OPEN_S = 2.5  # after which a client that waits gives up: garbage may be a valid request, after which the server waits
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) [ -~]*\Z")
FAILURE = re.compile(rb"HTTP/1\.1 5(?!01)")  # 501: garbage may contain a transfer coding that is not implemented
ERRORS = (ConnectionError, BrokenPipeError)


async def play(url: str, seeds: Iterator[int], workers: int) -> tuple[Counter[str], list[str]]:
    """Play the dialogues of ``seeds``. Returns counts and descriptions of errors."""
    host, port = url.removeprefix("http://").split(":")
    counts: Counter[str] = Counter()
    faults: list[str] = []

    async def work() -> None:
        for seed in seeds:
            made = dialogue(seed)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    wrong = await _play_one(host, int(port), made, counts)
            except TimeoutError:
                wrong = "the connection stays open"
            counts["dialogues"] += 1
            counts[made.ending] += 1
            if wrong:
                faults.append(f"seed {seed} ({made.ending}): {wrong}; sent {b''.join(made.pieces)[:300]!r}")

    await asyncio.gather(*(work() for _ in range(workers)))
    return counts, faults


async def _play_one(host: str, port: int, made: Dialogue, counts: Counter[str]) -> str:
    """Return a description of the error; "" if there is none."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sending = asyncio.ensure_future(_send(writer, made))
    try:
        if made.ending in ("close", "reset"):
            await sending
            if made.ending == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return ""
        return await _judge(reader, made, counts)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        with suppress(*ERRORS):
            await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, made: Dialogue) -> None:
    with suppress(*ERRORS):
        for piece in made.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if made.ending == "half":
            writer.write_eof()


async def _judge(reader: asyncio.StreamReader, made: Dialogue, counts: Counter[str]) -> str:
    try:
        for request in made.requests:
            status = await _read_reply(reader, request)
            counts[str(status)] += 1
            if status != request.status:
                return f"{request.method!r} {request.path[:40]!r} got {status}, not {request.status}"
        rest = b"" if made.stays_open else await _read_rest(reader, made)
    except (asyncio.IncompleteReadError, ValueError) as error:
        return f"the answers are not HTTP or not complete: {error!r}"
    except TimeoutError:
        rest = b"HTTP/1.1 open"
    except ConnectionError:
        rest = b"HTTP/1.1 reset"
    if not made.garbage:
        return f"further bytes: {rest[:100]!r}" if rest.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") else ""
    counts["after garbage " + (rest[9:14].decode("latin-1").split()[0] if rest else "closed")] += 1
    return f"a failure: {rest[:100]!r}" if FAILURE.search(rest) else ""


async def _read_rest(reader: asyncio.StreamReader, made: Dialogue) -> bytes:
    """Read until the server closes. Raises TimeoutError if it waits for a further request."""
    async with asyncio.timeout(OPEN_S if made.garbage and made.ending == "wait" else PATIENCE_S):
        return await reader.read()


async def _read_reply(reader: asyncio.StreamReader, request: Request) -> int:
    """Read one whole answer. Raises ValueError or IncompleteReadError if it is malformed."""
    status, headers = await _read_head(reader)
    while status == 100:
        if request.version != b"HTTP/1.1":
            raise ValueError("an interim response for an old client")
        status, headers = await _read_head(reader)
    if request.method == b"HEAD":
        return status
    if b"content-length" in headers:
        await reader.readexactly(int(headers[b"content-length"]))
    elif headers.get(b"transfer-encoding") == b"chunked":
        if request.version != b"HTTP/1.1":
            raise ValueError("chunks for an old client")
        await _read_chunks(reader)
    elif not (await reader.read()).endswith(b"data: [DONE]\n\n"):
        raise ValueError("a stream without end")
    return status


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    line = STATUS_LINE.match(head[0])
    if line is None:
        raise ValueError(head[0][:100])
    return int(line[1]), {name.lower(): value for name, value in (entry.split(b": ", 1) for entry in head[1:])}


async def _read_chunks(reader: asyncio.StreamReader) -> None:
    while size := int(await reader.readuntil(b"\r\n"), 16):
        if (await reader.readexactly(size + 2))[-2:] != b"\r\n":
            raise ValueError("a chunk without end")
    await reader.readexactly(2)
