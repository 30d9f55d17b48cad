"""The loop of the encoder process, over a model that counts characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from ebbtide.messages import AbortReq, EncodedBatch, EncodeReq, EncoderInfo, Heartbeat, ToEncoder, ToFront
from ebbtide.model_runner.encoder.encoder import Rows, Value
from ebbtide.model_runner.encoder.encoder_queue import EncoderQueue
from ebbtide.model_runner.encoder.process import Loop

INFO = EncoderInfo(scores_pairs=False, context_length=10, vocab_size=100, dimensions=2)


@dataclass
class Characters:
    """The vector of a text is its length and 1."""

    info: EncoderInfo = INFO
    batches: list[list[Value]] = field(default_factory=list)

    def count_tokens(self, value: Value) -> int:
        if value == "untokenizable":
            raise ValueError(value)
        return sum(map(len, value)) if isinstance(value, tuple) else len(value)

    def compute(self, values: Sequence[Value]) -> Rows:
        self.batches.append(list(values))
        if "bad" in values:
            raise RuntimeError("bad")
        rows = [(self.count_tokens(value), float("nan") if value == "nan" else 1.0) for value in values]
        return np.array(rows, "<f4")


@dataclass
class Bench:
    """The loop between two lists. A test sets the clock."""

    model: Characters = field(default_factory=Characters)
    incoming: list[ToEncoder] = field(default_factory=list)
    sent: list[ToFront] = field(default_factory=list)
    now: float = 0.0
    handled: int = 0
    limit: int | None = None

    def __post_init__(self) -> None:
        self.queue = EncoderQueue(20, self.limit)
        self.loop = Loop(self.model, self.queue, self, self, lambda: self.now)

    def drain(self, wait_s: float = 0.0) -> list[ToEncoder]:
        messages, self.incoming = self.incoming, []
        self.handled += len(messages)
        return messages

    def send(self, message: ToFront) -> bool:
        self.sent.append(message)
        return True

    def run(self, *messages: ToEncoder, turns: int = 3) -> Bench:
        self.incoming += messages
        for _ in range(turns):
            self.loop.turn()
        return self

    @property
    def vectors(self) -> dict[str, list[float]]:
        batches = [message for message in self.sent if isinstance(message, EncodedBatch)]
        return {item.rid: np.frombuffer(item.vector, "<f4").tolist() for batch in batches for item in batch.items}

    @property
    def aborts(self) -> dict[str, tuple[int, str | None]]:
        return {message.rid: (message.status, message.code) for message in self.sent if isinstance(message, AbortReq)}


def test_texts_pairs_and_ids_get_their_results() -> None:
    bench = Bench().run(
        EncodeReq("a", "ebb"), EncodeReq("b", "tides"), EncodeReq("c", "q", "doc"), EncodeReq("d", ids=[1, 2])
    )
    assert bench.vectors == {"a": [3, 1], "b": [5, 1], "c": [4, 1], "d": [2, 1]}
    assert bench.model.batches == [["ebb", "tides"], [("q", "doc")], [[1, 2]]]
    assert bench.aborts == {}


def test_the_result_has_the_tokens_and_the_size_of_its_batch() -> None:
    bench = Bench().run(EncodeReq("a", "ebb"), EncodeReq("b", "tides"))
    [batch] = [message for message in bench.sent if isinstance(message, EncodedBatch)]
    assert [(item.rid, item.num_tokens) for item in batch.items] == [("a", 3), ("b", 5)]
    assert batch.num_computed == 10


@pytest.mark.parametrize(("length", "fits"), [(10, True), (11, False)])
def test_a_text_longer_than_the_context_is_refused(length: int, fits: bool) -> None:
    bench = Bench().run(EncodeReq("a", "x" * length), EncodeReq("b", "y"))
    assert ("a" in bench.vectors) is fits
    assert "b" in bench.vectors
    assert bench.aborts == ({} if fits else {"a": (400, "context_length_exceeded")})


def test_an_aborted_text_is_not_computed() -> None:
    bench = Bench().run(EncodeReq("a", "ebb"), EncodeReq("b", "tide"), AbortReq("a", "client"), AbortReq("?", "client"))
    assert list(bench.vectors) == ["b"]
    assert bench.model.batches == [["tide"]]


def test_a_text_that_cannot_be_computed_fails_alone() -> None:
    bench = Bench().run(EncodeReq("a", "ebb"), EncodeReq("b", "bad"), EncodeReq("c", "nan"), EncodeReq("d", "sea"))
    assert list(bench.vectors) == ["a", "d"]
    assert bench.aborts == {"b": (500, "internal_error"), "c": (500, "model_output_invalid")}


def test_a_text_that_cannot_be_tokenized_fails_alone() -> None:
    bench = Bench().run(EncodeReq("a", "untokenizable"), EncodeReq("b", "tide"))
    assert (list(bench.vectors), bench.aborts) == (["b"], {"a": (500, "internal_error")})


def test_a_late_text_is_aborted() -> None:
    bench = Bench()
    bench.incoming = [EncodeReq("first", "x" * 10), EncodeReq("late", "x" * 10, timeout_s=5.0), EncodeReq("c", "y" * 9)]
    bench.loop.turn()
    assert list(bench.vectors) == ["first", "late"], "both fit into one batch"
    bench.run(EncodeReq("d", "z", timeout_s=0.0))
    assert bench.aborts == {"d": (504, "timeout")}


def test_heartbeats_are_sent_twice_a_second_and_name_the_state() -> None:
    bench = Bench().run(turns=1)
    bench.run(turns=5)
    assert [message for message in bench.sent if isinstance(message, Heartbeat)] == [Heartbeat("encoder", 0)]
    bench.now = 0.5
    bench.run(*(EncodeReq(f"r{number}", "x" * 10) for number in range(5)), turns=1)
    bench.now = 1.0
    bench.run(turns=1)
    beats = [message for message in bench.sent if isinstance(message, Heartbeat)]
    assert [(beat.handled, beat.state, beat.num_requests) for beat in beats] == [
        (0, "idle", 0),
        (0, "idle", 0),
        (5, "running", 3),
    ]


def test_inputs_above_the_limit_are_refused_like_chat_requests() -> None:
    bench = Bench(limit=2).run(*(EncodeReq(f"{name}-0", "ebb") for name in "abcd"))
    assert set(bench.vectors) == {"a-0", "b-0"}
    assert bench.aborts == {"c-0": (429, "queue_full"), "d-0": (429, "queue_full")}
    assert set(bench.run(EncodeReq("e-0", "ebb")).vectors) == {"a-0", "b-0", "e-0"}


def test_a_large_request_is_accepted_if_nothing_waits() -> None:
    bench = Bench(limit=2).run(*(EncodeReq(f"a-{number}", "ebb") for number in range(5)), EncodeReq("b-0", "ebb"))
    assert set(bench.vectors) == {f"a-{number}" for number in range(5)}
    assert bench.aborts == {"b-0": (429, "queue_full")}
