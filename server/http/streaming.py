"""Sends a response to the client, complete or as server-sent events.

If the client disconnects, the request is cancelled immediately.
"""

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
    """Converts the deltas of a response into one API's chunks."""

    def first_chunks(self) -> list[dict[str, Any]]:
        """Return the chunks to send before those of the first delta."""

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return the chunks of a delta; an empty list if there is nothing to send yet."""

    def last_chunks(self) -> list[dict[str, Any]]:
        """Return the chunks to send after those of the last delta."""


def _error_chunk(error: Rejected) -> list[dict[str, Any]]:
    return [envelope(error)]


@dataclass(frozen=True, slots=True)
class Framing:
    """The format of an API's server-sent events; the defaults are those of OpenAI's completions routes.

    Attributes:
        named: True if each event is named after its chunk's ``type``.
        keep_alive: bytes to send if no delta has arrived during the keep-alive interval.
        end_mark: bytes to send at the end of a successful stream.
        failure: returns the chunks for an error that occurs after the status line was sent.
    """

    named: bool = False
    keep_alive: bytes = b": keep-alive\n\n"
    end_mark: bytes = b"data: [DONE]\n\n"
    failure: Callable[[Rejected], list[dict[str, Any]]] = _error_chunk

    def events(self, chunks: list[dict[str, Any]]) -> bytes:
        """Format the chunks as server-sent events."""
        return b"".join(self._name(chunk) + b"data: " + as_json(chunk) + b"\n\n" for chunk in chunks)

    def _name(self, chunk: dict[str, Any]) -> bytes:
        return f"event: {chunk['type']}\n".encode() if self.named else b""


def as_json(value: Any) -> bytes:
    """Format ``value`` as compact ASCII JSON.

    The result has no Unicode line separators, which could split an event.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


CHAT_FRAMING = Framing()


class CompleteReply(Response):
    """A complete (non-streaming) response, which is one JSON value.

    If the request fails, raises its error, which an exception handler converts to the response.
    """

    def __init__(self, answer: ResponseStream, build: Callable[[list[Delta]], dict[str, Any] | list[Any]]) -> None:
        super().__init__()
        self._answer = answer
        self._build = build

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer:
            deltas = await cancel_on_disconnect(self._answer.all_deltas(), receive)
        if deltas is not None:
            body = Response(as_json(self._build(deltas)), media_type="application/json")
            await body(scope, receive, send)


class EventStream(Response):
    """A streamed response. The status line is sent with the first token or the first keep-alive.

    An error before the status line becomes an HTTP error response. A later error becomes an error event, which ends the
    stream.
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
            await cancel_on_disconnect(self._stream(send), receive)

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


async def cancel_on_disconnect(work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
    """Return the result of ``work``. If the client disconnects first, cancels ``work`` and returns None."""
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
