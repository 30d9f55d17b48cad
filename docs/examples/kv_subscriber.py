"""An example of a router's ear: knows at any time which blocks one ebbtide server has cached.

ebbtide serve --kv-events tcp://127.0.0.1:5557 --kv-events-replay tcp://127.0.0.1:5558
python docs/examples/kv_subscriber.py tcp://127.0.0.1:5557 tcp://127.0.0.1:5558
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import zmq

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
Batches = Iterable[tuple[int, bytes]]


class Index:
    """The blocks of one server. replay: the batches from a number on that the server still has, oldest first."""

    def __init__(self, replay: Callable[[int], Batches]) -> None:
        self.blocks: dict[int, int | None] = {}  # block hash -> its parent's
        self._replay = replay
        self._next = 0
        self._last_ts = 0.0

    def hear(self, number: int, payload: bytes) -> None:
        """Take in one published batch, and whatever was missed before it."""
        ts = msgspec.msgpack.decode(payload)[0]
        if number < self._next:
            if ts <= self._last_ts:
                return  # a replay brought it already
            self._forget(0)  # the server was started again and counts anew
        if number > self._next:
            for missed, content in self._replay(self._next):
                self._apply(missed, content)
        if number >= self._next:
            self._apply(number, payload)

    def _apply(self, number: int, payload: bytes) -> None:
        if number > self._next:
            self._forget(number)  # what lies between is lost for good
        self._last_ts, events = msgspec.msgpack.decode(payload)[:2]
        self._next = number + 1
        for name, *fields in events:
            self._event(name, fields)

    def _event(self, name: str, fields: list[Any]) -> None:
        if name == "AllBlocksCleared":
            self.blocks.clear()
        elif name == "BlockRemoved":
            for block in fields[0]:
                self.blocks.pop(block, None)
        elif name == "BlockStored":
            hashes, parent, *_ = fields
            for block in hashes:
                self.blocks[block] = parent
                parent = block

    def _forget(self, number: int) -> None:
        self.blocks.clear()
        self._next = number


def ask(socket: zmq.Socket[Any], number: int) -> Batches:
    """The server's answer to "what came from ``number`` on?"; nothing when it does not answer within 5 seconds."""
    socket.send_multipart([b"", number.to_bytes(8, "big")])
    while socket.poll(5000):
        _, counted, payload = socket.recv_multipart()
        if counted == END_OF_REPLAY:
            return
        yield int.from_bytes(counted, "big"), payload


def main(address: str, replay_address: str) -> None:
    """Print how many blocks the server has, after every batch, for ever."""
    context = zmq.Context.instance()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.connect(address)
    subscriber.subscribe(b"")
    dealer.connect(replay_address)
    index = Index(lambda number: ask(dealer, number))
    while True:
        _, counted, payload = subscriber.recv_multipart()
        index.hear(int.from_bytes(counted, "big"), payload)
        print(len(index.blocks), "blocks", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
