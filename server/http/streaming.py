"""How an answer reaches the client: whole, or as server-sent events. A client that leaves ends its request at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.response_stream import Delta, ResponseStream

from .error_replies import envelope

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ChunkWriter(Protocol):
    """One API's chunks for the deltas of an answer."""

    def first_chunks(self) -> list[dict[str, Any]]:
        """Chunks that go out in front of the first delta's."""

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Chunks for a delta; none when there is nothing to show yet."""

    def last_chunks(self) -> list[dict[str, Any]]:
        """Chunks after the last delta's."""


def _error_chunk(error: Rejected) -> list[dict[str, Any]]:
    return [envelope(error)]


@dataclass(frozen=True, slots=True)
class Framing:
    """How an API's chunks stand in its stream; by default as in OpenAI's older routes.

    named: each chunk's ``type`` is the name of its event. keep_alive: what breaks a silence. end_mark: the last thing
    of a stream that ends well. failure: chunks for an error that comes after the status line.
    """

    named: bool = False
    keep_alive: bytes = b": keep-alive\n\n"
    end_mark: bytes = b"data: [DONE]\n\n"
    failure: Callable[[Rejected], list[dict[str, Any]]] = _error_chunk

    def events(self, chunks: list[dict[str, Any]]) -> bytes:
        """The chunks as server-sent events."""
        return b"".join(self._name(chunk) + b"data: " + as_json(chunk) + b"\n\n" for chunk in chunks)

    def _name(self, chunk: dict[str, Any]) -> bytes:
        return f"event: {chunk['type']}\n".encode() if self.named else b""


def as_json(value: Any) -> bytes:
    """Compact JSON in pure ASCII, so that no line separator of Unicode can split an event."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


CHAT_FRAMING = Framing()


class WholeReply(Response):
    """The complete answer as one JSON value. Raises the request's error for the error replies to answer."""

    def __init__(self, answer: ResponseStream, build: Callable[[list[Delta]], dict[str, Any] | list[Any]]) -> None:
        super().__init__()
        self._answer = answer
        self._build = build

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer:
            deltas = await _cancel_on_disconnect(self._answer.all_deltas(), receive)
        if deltas is not None:
            body = Response(as_json(self._build(deltas)), media_type="application/json")
            await body(scope, receive, send)


class EventStream(Response):
    """The answer as it comes. The status line goes out with the first token or the first keep-alive:
    what fails before is a plain HTTP error, what fails after is an event, and the stream just ends.
    """

    def __init__(
        self, answer: ResponseStream, writer: ChunkWriter, keep_alive_s: float, framing: Framing = CHAT_FRAMING
    ) -> None:
        super().__init__()
        self._answer = answer
        self._writer = writer
        self._framing = framing
        self._silence_s = keep_alive_s or None
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer:
            await _cancel_on_disconnect(self._stream(send), receive)

    async def _stream(self, send: Send) -> None:
        try:
            await self._events(send)
        except Rejected as error:
            if not self._started:
                raise
            await self._send(send, self._framing.events(self._framing.failure(error)), more=False)

    async def _events(self, send: Send) -> None:
        announced, framing = False, self._framing
        while not self._answer.done:
            deltas = await self._answer.next_deltas(self._silence_s)
            chunks = [] if announced or not deltas else self._writer.first_chunks()
            announced = announced or bool(deltas)
            for delta in deltas:
                chunks += self._writer.chunks(delta)
            if chunks or not deltas:
                await self._send(send, framing.events(chunks) or framing.keep_alive)
        await self._send(send, framing.events(self._writer.last_chunks()) + framing.end_mark, more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_HEADERS)})
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _cancel_on_disconnect(work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
    """The result of ``work``, or None when the client left first; ``work`` is then cancelled."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return worker.result() if worker.done() else None
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
