"""Typed one-way channels over ZMQ, encoded with msgpack (never pickle). Independent of the meaning of messages.

The receiver binds, and the sender may start first. The sockets are in a directory that only its owner can enter.
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
    """The sending end of a channel. ``send`` never blocks."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.sndhwm = SEND_QUEUE
        self._socket.linger = 200
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: M) -> bool:
        """Queue a message. Returns False if ``SEND_QUEUE`` messages are already queued."""
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the connection. Queued messages are sent for up to 0.2 s."""
        self._socket.close()


class _Decoding(Generic[M]):
    """Decoding for both receivers. An invalid frame is dropped and counted; it never ends the process."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self.bad_frames = 0
        self.handled = 0

    def decode(self, frame: bytes) -> M | None:
        """Return the message, or None if the bytes are invalid."""
        try:
            message = self._decoder.decode(frame)
        except (msgspec.MsgspecError, RecursionError) as error:
            self.bad_frames += 1
            log.error("dropped an invalid frame of %d bytes: %s", len(frame), error)
            return None
        self.handled += 1
        return message


class Receiver(_Decoding[M]):
    """The receiving end of a channel, for a process with its own loop."""

    def __init__(self, context: zmq.Context[Any], address: str, kind: Any) -> None:
        super().__init__(kind)
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = 0
        self._socket.bind(address)

    def drain(self, wait_s: float = 0.0) -> list[M]:
        """Return all received messages. If there are none, first wait up to ``wait_s`` seconds for one."""
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
        """Stop receiving. Messages that were not read are lost."""
        self._socket.close(linger=0)


class AsyncReceiver(_Decoding[M]):
    """The receiving end of a channel, for an asyncio process."""

    def __init__(self, context: zmq.asyncio.Context, address: str, kind: Any) -> None:
        super().__init__(kind)
        self._socket = context.socket(zmq.PULL)
        self._socket.rcvhwm = 0
        self._socket.bind(address)

    async def receive(self) -> M:
        """Wait for the next message."""
        while True:
            message = self.decode(await self._socket.recv())
            if message is not None:
                return message

    def close(self) -> None:
        """Stop receiving. Messages that were not read are lost."""
        self._socket.close(linger=0)
