"""An example subscriber for routers: tracks the blocks that one ebbtide server has cached.

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
    """The cached blocks of one server."""

    def __init__(self, replay: Callable[[int], Batches]) -> None:
        """replay: returns the stored batches from a number on, oldest first."""
        self.blocks: dict[int, int | None] = {}  # block hash -> parent hash
        self._replay = replay
        self._next = 0
        self._last_ts = 0.0

    def receive(self, number: int, payload: bytes) -> None:
        """Apply one published batch, after requesting the batches that were missed before it."""
        ts = msgspec.msgpack.decode(payload)[0]
        if number < self._next:
            if ts <= self._last_ts:
                return  # already applied by a replay
            self._forget(0)  # the server was restarted and numbers from 0
        if number > self._next:
            for missed, content in self._replay(self._next):
                self._apply(missed, content)
        if number >= self._next:
            self._apply(number, payload)

    def _apply(self, number: int, payload: bytes) -> None:
        if number > self._next:
            self._forget(number)  # the batches in between are lost
        self._last_ts, events = msgspec.msgpack.decode(payload)[:2]
        self._next = number + 1
        for event in events:
            self._event(event)

    def _event(self, event: dict[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self.blocks.clear()
        elif event["type"] == "BlockRemoved":
            for block in event["block_hashes"]:
                self.blocks.pop(block, None)
        elif event["type"] == "BlockStored":
            parent = event["parent_block_hash"]
            for block in event["block_hashes"]:
                self.blocks[block] = parent
                parent = block

    def _forget(self, number: int) -> None:
        self.blocks.clear()
        self._next = number


def ask(socket: zmq.Socket[Any], number: int) -> Batches:
    """The stored batches from ``number`` on; ends early if the server does not answer within 5 seconds."""
    socket.send_multipart([b"", number.to_bytes(8, "big")])
    while socket.poll(5000):
        *_, counted, payload = socket.recv_multipart()
        if counted == END_OF_REPLAY:
            return
        yield int.from_bytes(counted, "big"), payload


def main(address: str, replay_address: str) -> None:
    """Print the number of cached blocks after every batch. Never returns."""
    context = zmq.Context.instance()
    subscriber, dealer = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    subscriber.connect(address)
    subscriber.subscribe(b"")
    dealer.connect(replay_address)
    index = Index(lambda number: ask(dealer, number))
    while True:
        _, counted, payload = subscriber.recv_multipart()
        index.receive(int.from_bytes(counted, "big"), payload)
        print(len(index.blocks), "blocks", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
