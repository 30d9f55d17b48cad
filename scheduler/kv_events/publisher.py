"""The ZMQ sockets on which external routers receive KV events. The module does not depend on the content of the events.

A slow subscriber loses batches, which it can detect by gaps in the sequence numbers. It delays neither the scheduler
nor other subscribers.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import Any

import msgspec
import zmq

from ebbtide.config import SchedulerConfig
from ebbtide.errors import StartupError

from .block_events import BlockRecorder, EventBatch

log = logging.getLogger(__name__)

TOPIC = b""  # the default of vLLM and SGLang; vllm-router ignores batches with another topic
SUBSCRIBER_QUEUE = 10_000  # maximum number of batches queued for a slow subscriber
REPLAY_BATCHES = 2_000
REPLAY_BYTES = 64 << 20
TCP_PORT = re.compile(r"tcp://.*:(.*)", re.DOTALL)
MAX_PORT = 65535
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class ReplayBuffer:
    """Keeps the newest batches: at most ``REPLAY_BATCHES`` batches and ``REPLAY_BYTES`` bytes, but at least one."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0

    def add(self, number: int, payload: bytes) -> None:
        """Append a batch. Drop the oldest batches that exceed the limits."""
        self._batches.append((number, payload))
        self._num_bytes += len(payload)
        while len(self._batches) > REPLAY_BATCHES or (self._num_bytes > REPLAY_BYTES and len(self._batches) > 1):
            self._num_bytes -= len(self._batches.popleft()[1])

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """Return the stored batches whose sequence number is at least ``number``, oldest first."""
        return [batch for batch in self._batches if batch[0] >= number]


class KvEventPublisher:
    """Publishes the events of ``recorder``, one batch per step, and replays missed batches on request. It never blocks.

    The constructor raises StartupError if a socket cannot be bound.
    """

    def __init__(self, context: zmq.Context[Any], address: str, replay: str | None, page_size: int) -> None:
        self.recorder = BlockRecorder(page_size)
        self._encoder = msgspec.msgpack.Encoder()
        self._number = 0
        self._replay_buffer = ReplayBuffer()
        self._publisher = _bound(context, zmq.PUB, address, "--kv-events")
        try:
            self._replay_socket = None if replay is None else _bound(context, zmq.ROUTER, replay, "--kv-events-replay")
        except StartupError:
            self._publisher.close()
            raise

    @property
    def address(self) -> str:
        """Address of the publisher, with the actual port if port 0 was requested."""
        return str(self._publisher.get_string(zmq.LAST_ENDPOINT))

    @property
    def replay_address(self) -> str | None:
        """Address for replay requests; None if replay is off."""
        return None if self._replay_socket is None else str(self._replay_socket.get_string(zmq.LAST_ENDPOINT))

    def publish(self, now: float) -> None:
        """Send the events since the last call, if any, and handle at most one replay request.

        now: seconds since 1970.
        """
        events = self.recorder.drain()
        if events:
            payload = self._encoder.encode(EventBatch(now, events))
            self._publisher.send_multipart((TOPIC, _frame(self._number), payload), zmq.NOBLOCK)
            if self._replay_socket is not None:
                self._replay_buffer.add(self._number, payload)
            self._number += 1
        if self._replay_socket is not None:
            self._handle_replay_request(self._replay_socket)

    def close(self) -> None:
        """Close the sockets. ZMQ keeps sending queued messages for up to 200 ms."""
        self._publisher.close()
        if self._replay_socket is not None:
            self._replay_socket.close()

    def _handle_replay_request(self, replay: zmq.Socket[Any]) -> None:
        """Handle at most one request per step, to bound the cost of a step."""
        try:
            frames = replay.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("ignored a replay request for KV events, because it is not an 8-byte sequence number")
            return
        for number, payload in self._replay_buffer.since(int.from_bytes(frames[2], "big")):
            replay.send_multipart((frames[0], b"", TOPIC, _frame(number), payload), zmq.NOBLOCK)
        replay.send_multipart((frames[0], b"", b"", END_OF_REPLAY, b""), zmq.NOBLOCK)


def open_kv_events(context: zmq.Context[Any], config: SchedulerConfig, page_size: int) -> KvEventPublisher | None:
    """Create the publisher as the flags specify. Return None if KV events are off.

    Raises StartupError if the flags are invalid, or if a socket cannot be bound.
    """
    if config.kv_events is None:
        if config.kv_events_replay is not None:
            raise StartupError("--kv-events-replay requires --kv-events.")
        return None
    if config.disable_radix_cache:
        raise StartupError(
            "--kv-events and --disable-radix-cache are mutually exclusive: without a prefix cache there are no events."
        )
    publisher = KvEventPublisher(context, config.kv_events, config.kv_events_replay, page_size)
    log.info("KV events are published at %s; replay: %s", publisher.address, publisher.replay_address or "off")
    return publisher


def _bound(context: zmq.Context[Any], kind: int, address: str, flag: str) -> zmq.Socket[Any]:
    if not address.startswith(("tcp://", "ipc://")):
        raise StartupError(f"{flag} must be an address such as tcp://127.0.0.1:5557, not {address!r}.")
    port = TCP_PORT.match(address)
    if port is not None and not _is_port(port[1]):  # ZMQ takes the port modulo 2^16, and ignores text after the digits
        raise StartupError(f"{flag} {address} cannot be bound: the port must be in [0, 65535], or *.")
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.sndhwm = SUBSCRIBER_QUEUE
    socket.linger = 200
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StartupError(f"{flag} {address} cannot be bound: {zmq.strerror(error.errno or 0)}.") from error
    return socket


def _is_port(text: str) -> bool:
    return text == "*" or (text.isdecimal() and len(text) <= 5 and int(text) <= MAX_PORT)


def _frame(number: int) -> bytes:
    return number.to_bytes(8, "big")
