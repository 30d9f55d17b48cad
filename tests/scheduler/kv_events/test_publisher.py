"""KV events over real sockets in one process: sequence numbers, replay, and invalid addresses."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from ebbtide.config import SchedulerConfig
from ebbtide.errors import StartupError
from ebbtide.model_runner.sim.sim import SimShape
from ebbtide.scheduler.kv_events import publisher as kv_events
from ebbtide.scheduler.kv_events.publisher import END_OF_REPLAY, TOPIC, KvEventPublisher, ReplayBuffer, open_kv_events
from ebbtide.scheduler.memory.radix_cache import RadixCache

from ..test_process import Daemon, generate

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "kv_subscriber.py"
ANY = "tcp://127.0.0.1:0"
PATIENCE_MS = 20_000


def example() -> Any:
    spec = importlib.util.spec_from_file_location("kv_subscriber", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)  # closes sockets that a failed test left open: term would wait for them


@pytest.fixture
def events(context: zmq.Context[Any]) -> Iterator[KvEventPublisher]:
    made = KvEventPublisher(context, ANY, ANY, page_size=4)
    yield made
    made.close()


class Far:
    """The sockets of the subscribers."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context
        self._sockets: list[zmq.Socket[Any]] = []

    def subscriber(self, events: KvEventPublisher) -> zmq.Socket[Any]:
        """A subscriber that receives all batches from now on."""
        socket = self._connect(zmq.SUB, events.address)
        socket.subscribe(b"")
        for _ in range(PATIENCE_MS // 10):  # publish until the subscription has arrived
            if socket.poll(10):
                return socket
            say(events, 1)
        raise TimeoutError("no batch arrives")

    def dealer(self, events: KvEventPublisher) -> zmq.Socket[Any]:
        """A client of the replay socket."""
        assert events.replay_address is not None
        return self._connect(zmq.DEALER, events.replay_address)

    def _connect(self, kind: int, address: str) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = self._context.socket(kind)
        self._sockets.append(socket)
        socket.rcvtimeo = PATIENCE_MS
        socket.connect(address)
        return socket

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets:
            socket.close(linger=0)


@pytest.fixture
def far(context: zmq.Context[Any]) -> Iterator[Far]:
    made = Far(context)
    yield made
    made.close()


def replay_of(socket: zmq.Socket[Any], events: KvEventPublisher, number: int) -> list[tuple[int, bytes]]:
    """Request a replay and run the publisher until the reply is complete."""
    socket.send_multipart([b"", number.to_bytes(8, "big")])
    answers: list[Any] = []
    while True:
        while not socket.poll(1):
            events.publish(0.0)
        empty, topic, counted, payload = socket.recv_multipart()
        if counted == END_OF_REPLAY:
            assert (empty, topic, payload) == (b"", b"", b"")
            return answers
        assert (empty, topic) == (b"", TOPIC)
        answers.append((int.from_bytes(counted, "big"), payload))


def say(events: KvEventPublisher, count: int) -> None:
    for _ in range(count):
        events.recorder.rebuilt([])
        events.publish(1.0)


def has_finished(daemon: Daemon, rid: str) -> bool:
    return any(item.rid == rid and item.finish is not None for item in daemon.items)


def test_a_running_loop_keeps_the_example_subscriber_up_to_date(
    far: Far, events: KvEventPublisher, tmp_path: Path
) -> None:
    dealer, subscriber = far.dealer(events), far.subscriber(events)
    index = example().Index(lambda number: replay_of(dealer, events, number))
    daemon = Daemon(tmp_path, SimShape(num_pages=8, page_size=4, num_rows=4), events=events)
    try:
        for rid in "abcdef":
            daemon.sender.send(generate(rid, 20, prompt=f"{rid} is a prompt"))
            daemon.turn_until(partial(has_finished, daemon, rid))
            while subscriber.poll(50):
                _, number, payload = subscriber.recv_multipart()
                index.receive(int.from_bytes(number, "big"), payload)
            tree = daemon.scheduler.state.pool.tree_cache
            assert isinstance(tree, RadixCache)
            assert 0 < len(index.blocks) == sum(len(node.pages) for node in tree.walk())
    finally:
        daemon.close()


def test_numbers_go_up_by_one_and_a_step_without_events_sends_nothing(far: Far, events: KvEventPublisher) -> None:
    subscriber = far.subscriber(events)
    while subscriber.poll(50):
        first = int.from_bytes(subscriber.recv_multipart()[1], "big")
    say(events, 3)
    events.publish(1.0)
    say(events, 1)
    frames = [subscriber.recv_multipart() for _ in range(4)]
    assert [int.from_bytes(number, "big") - first for _, number, _ in frames] == [1, 2, 3, 4]
    assert {topic for topic, _, _ in frames} == {TOPIC} == {b""}
    assert msgspec.msgpack.decode(frames[0][2]) == [1.0, [{"type": "AllBlocksCleared"}]]


def test_a_late_subscriber_gets_what_it_missed(far: Far, events: KvEventPublisher) -> None:
    say(events, 5)
    answers = replay_of(far.dealer(events), events, 2)
    assert [number for number, _ in answers] == [2, 3, 4]


def test_an_invalid_replay_request_is_ignored_and_the_next_one_handled(
    far: Far, events: KvEventPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    dealer = far.dealer(events)
    dealer.send_multipart([b"", b"what?"])
    assert [number for number, _ in replay_of(dealer, events, 0)] == [0]
    assert "ignored a replay request" in caplog.text


def test_the_replay_buffer_keeps_only_the_newest_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ReplayBuffer()
    monkeypatch.setattr(kv_events, "REPLAY_BATCHES", 3)
    for number in range(5):
        kept.add(number, b"x" * 10)
    assert [number for number, _ in kept.since(0)] == [2, 3, 4]
    monkeypatch.setattr(kv_events, "REPLAY_BYTES", 25)
    kept.add(5, b"x" * 10)
    assert [number for number, _ in kept.since(0)] == [4, 5]
    kept.add(6, b"x" * 100)
    assert [number for number, _ in kept.since(0)] == [6]


def test_a_stuck_subscriber_blocks_nothing(
    context: zmq.Context[Any], far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "SUBSCRIBER_QUEUE", 2)
    events = KvEventPublisher(context, ANY, None, page_size=4)
    subscriber = far.subscriber(events)
    say(events, 50_000)
    heard = 0
    while subscriber.poll(100):
        last = int.from_bytes(subscriber.recv_multipart()[1], "big")
        heard += 1
    assert last + 1 > heard
    events.close()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (SchedulerConfig(kv_events="127.0.0.1:5557"), "--kv-events must be an address such as"),
        (SchedulerConfig(kv_events="tcp://127.0.0.1"), "--kv-events tcp://127.0.0.1 cannot be bound: "),
        *(
            (SchedulerConfig(kv_events=f"tcp://127.0.0.1:{port}"), "--kv-events tcp.* the port must be in")
            for port in ("65536", "99999", "-1", "-64000", "5557x", "", "9" * 5000)
        ),
        (SchedulerConfig(kv_events=ANY, kv_events_replay="tcp://127.0.0.1:88888"), "--kv-events-replay tcp.* the port"),
        (SchedulerConfig(kv_events=ANY, kv_events_replay="udp://x"), "--kv-events-replay must be an address"),
        (SchedulerConfig(kv_events_replay=ANY), "requires --kv-events"),
        (SchedulerConfig(kv_events=ANY, disable_radix_cache=True), "mutually exclusive"),
    ],
)
def test_invalid_addresses_are_startup_errors(
    context: zmq.Context[Any], config: SchedulerConfig, sentence: str
) -> None:
    with pytest.raises(StartupError, match=sentence):
        open_kv_events(context, config, 4)


def test_an_address_in_use_is_a_startup_error(context: zmq.Context[Any], events: KvEventPublisher) -> None:
    with pytest.raises(StartupError, match="cannot be bound: Address already in use"):
        open_kv_events(context, SchedulerConfig(kv_events=events.address), 4)


def test_without_the_flag_no_socket_is_opened(context: zmq.Context[Any]) -> None:
    assert open_kv_events(context, SchedulerConfig(), 4) is None


def test_the_example_distinguishes_gap_repetition_and_restart() -> None:
    def batch(ts: float, *hashes: int) -> bytes:
        stored = {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": None, "token_ids": []}
        return msgspec.msgpack.encode([ts, [stored]])

    kept = {0: batch(1.0, 1), 1: batch(2.0, 2), 2: batch(3.0, 3)}
    asked: list[int] = []

    def replay(number: int) -> list[tuple[int, bytes]]:
        asked.append(number)
        return [(n, payload) for n, payload in kept.items() if n >= number]

    index = example().Index(replay)
    index.receive(1, kept[1])
    index.receive(1, kept[1])
    index.receive(2, kept[2])
    assert (set(index.blocks), asked) == ({1, 2, 3}, [0])
    kept.clear()
    index.receive(9, batch(4.0, 9))
    assert (set(index.blocks), asked) == ({9}, [0, 3])
    index.receive(0, batch(5.0, 7))
    assert set(index.blocks) == {7}
    index.receive(
        1, msgspec.msgpack.encode([6.0, [{"type": "BlockRemoved", "block_hashes": [7]}, {"type": "AllBlocksCleared"}]])
    )
    assert index.blocks == {}
