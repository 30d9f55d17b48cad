"""The sockets on which routers outside hear what the prefix cache holds. Knows ZMQ, not what is said.

A subscriber that is too slow loses batches of its own and sees it from the sequence numbers; nobody else waits for it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import msgspec
import zmq

from ebbtide.config import SchedulerConfig
from ebbtide.errors import StartupError

from .block_events import BlockRecorder, EventBatch

log = logging.getLogger(__name__)

TOPIC = b"kv-events"
SUBSCRIBER_QUEUE = 10_000  # batches that wait for one slow subscriber
KEPT_BATCHES = 2_000
KEPT_BYTES = 64 << 20
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class Kept:
    """The last batches: at most ``KEPT_BATCHES`` and ``KEPT_BYTES``, the newest always."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._num_bytes = 0

    def add(self, number: int, payload: bytes) -> None:
        """Keep one more, and drop the oldest ones for it."""
        self._batches.append((number, payload))
        self._num_bytes += len(payload)
        while len(self._batches) > KEPT_BATCHES or (self._num_bytes > KEPT_BYTES and len(self._batches) > 1):
            self._num_bytes -= len(self._batches.popleft()[1])

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """Those from ``number`` on that are still here, oldest first."""
        return [batch for batch in self._batches if batch[0] >= number]


class KvEvents:
    """Publishes what ``recorder`` saw, one batch a step, and answers who missed some. Nothing here blocks.

    Raises StartupError when an address cannot be listened on.
    """

    def __init__(self, context: zmq.Context[Any], address: str, replay: str | None, page_size: int) -> None:
        self.recorder = BlockRecorder(page_size)
        self._encoder = msgspec.msgpack.Encoder()
        self._number = 0
        self._kept = Kept()
        self._publisher = _bound(context, zmq.PUB, address, "--kv-events")
        try:
            self._replay = None if replay is None else _bound(context, zmq.ROUTER, replay, "--kv-events-replay")
        except StartupError:
            self._publisher.close()
            raise

    @property
    def address(self) -> str:
        """Where the publisher listens, with the port that a 0 has become."""
        return str(self._publisher.get_string(zmq.LAST_ENDPOINT))

    @property
    def replay_address(self) -> str | None:
        """Where missed batches can be asked for."""
        return None if self._replay is None else str(self._replay.get_string(zmq.LAST_ENDPOINT))

    def turned(self, now: float) -> None:
        """After a turn of the loop: send what happened in it, if anything did. now: seconds since 1970."""
        events = self.recorder.take()
        if events:
            payload = self._encoder.encode(EventBatch(now, events))
            self._publisher.send_multipart((TOPIC, _frame(self._number), payload), zmq.NOBLOCK)
            if self._replay is not None:
                self._kept.add(self._number, payload)
            self._number += 1
        if self._replay is not None:
            self._answer(self._replay)

    def close(self) -> None:
        """Stop listening; what was sent has a moment to leave."""
        self._publisher.close()
        if self._replay is not None:
            self._replay.close()

    def _answer(self, replay: zmq.Socket[Any]) -> None:
        """One question a turn, so that a subscriber that keeps asking slows no step by more than that."""
        try:
            frames = replay.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("a question for missed KV events is not a number of 8 bytes and is ignored")
            return
        for number, payload in self._kept.since(int.from_bytes(frames[2], "big")):
            replay.send_multipart((frames[0], b"", _frame(number), payload), zmq.NOBLOCK)
        replay.send_multipart((frames[0], b"", END_OF_REPLAY, b""), zmq.NOBLOCK)


def open_kv_events(context: zmq.Context[Any], config: SchedulerConfig, page_size: int) -> KvEvents | None:
    """What the flags ask for; None when they ask for nothing. Raises StartupError for what cannot be."""
    if config.kv_events is None:
        if config.kv_events_replay is not None:
            raise StartupError("--kv-events-replay repeats what --kv-events publishes: give both.")
        return None
    if config.disable_radix_cache:
        raise StartupError("--kv-events has nothing to tell with --disable-radix-cache: give one of them.")
    events = KvEvents(context, config.kv_events, config.kv_events_replay, page_size)
    log.info("KV events at %s, missed ones at %s", events.address, events.replay_address or "no address")
    return events


def _bound(context: zmq.Context[Any], kind: int, address: str, flag: str) -> zmq.Socket[Any]:
    if not address.startswith(("tcp://", "ipc://")):
        raise StartupError(f"{flag} must be an address such as tcp://127.0.0.1:5557, not {address!r}.")
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.sndhwm = SUBSCRIBER_QUEUE
    socket.linger = 200
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StartupError(f"{flag} {address} cannot be listened on: {zmq.strerror(error.errno or 0)}.") from error
    return socket


def _frame(number: int) -> bytes:
    return number.to_bytes(8, "big")
