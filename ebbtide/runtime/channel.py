"""Typed one-way channels over ZMQ: msgpack in, msgpack out, never pickle. Knows nothing of what the messages mean.

The receiving side binds, so that a sender may start first; sockets live in a directory that only the owner can enter.
"""

from __future__ import annotations

import logging
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

log = logging.getLogger(__name__)
M = TypeVar("M")

SEND_QUEUE = 10_000


class Sender(Generic[M]):
    """The sending end. ``send`` never blocks."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.sndhwm = SEND_QUEUE
        self._socket.linger = 200
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: M) -> bool:
        """Queue a message; False when the peer has not taken the last ``SEND_QUEUE`` ones."""
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Drop the connection; what is queued has a moment to leave."""
        self._socket.close()


class _Decoding(Generic[M]):
    """What both receivers share: a bad frame is dropped and counted, it never ends the process."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self.bad_frames = 0
        self.handled = 0

    def decode(self, frame: bytes) -> M | None:
        """The message, or None for bytes that are not one."""
        try:
            message = self._decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError) as error:
            self.bad_frames += 1
            log.error("dropped a frame of %d bytes that is no message: %s", len(frame), error)
            return None
        self.handled += 1
        return message


class Receiver(_Decoding[M]):
    """The receiving end for a process with a loop of its own."""

    def __init__(self, context: zmq.Context[Any], address: str, kind: Any) -> None:
        super().__init__(kind)
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = 0
        self._socket.bind(address)

    def drain(self, wait_s: float = 0.0) -> list[M]:
        """All messages that are here; when there are none, the first ones within ``wait_s`` seconds."""
        messages: list[M] = []
        if wait_s > 0 and not self._socket.poll(int(wait_s * 1000)):
            return messages
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            message = self.decode(frame)
            if message is not None:
                messages.append(message)

    def close(self) -> None:
        """Stop receiving; what was not taken is lost."""
        self._socket.close(linger=0)


class AsyncReceiver(_Decoding[M]):
    """The receiving end for an asyncio process."""

    def __init__(self, context: zmq.asyncio.Context, address: str, kind: Any) -> None:
        super().__init__(kind)
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = 0
        self._socket.bind(address)

    async def receive(self) -> M:
        """The next message."""
        while True:
            message = self.decode(await self._socket.recv())
            if message is not None:
                return message

    def close(self) -> None:
        """Stop receiving; what was not taken is lost."""
        self._socket.close(linger=0)
