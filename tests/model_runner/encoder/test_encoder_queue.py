"""Which inputs the encoder computes together."""

from __future__ import annotations

import random

from ebbtide.model_runner.encoder.encoder_queue import EncoderQueue, WaitingInput


def queue_of(*lengths: int, limit: int = 100) -> EncoderQueue:
    queue = EncoderQueue(limit)
    for number, length in enumerate(lengths):
        queue.add(WaitingInput(f"r{number}", "x", length))
    return queue


def rids(batch: list[WaitingInput]) -> list[str]:
    return [one.rid for one in batch]


def test_an_empty_queue_has_no_batch() -> None:
    assert EncoderQueue(100).pop_batch() == []


def test_a_batch_has_the_oldest_input_and_those_of_similar_length() -> None:
    queue = queue_of(20, 90, 21, 5, 19, 22)
    assert rids(queue.pop_batch()) == ["r0", "r2", "r4", "r5"]
    assert rids(queue.pop_batch()) == ["r1"]
    assert rids(queue.pop_batch()) == ["r3"]
    assert len(queue) == 0


def test_padding_counts_towards_the_limit() -> None:
    assert rids(queue_of(10, 40, limit=79).pop_batch()) == ["r0"]
    assert rids(queue_of(10, 40, limit=80).pop_batch()) == ["r0", "r1"]


def test_one_input_may_exceed_the_limit() -> None:
    assert rids(queue_of(500, 500, limit=10).pop_batch()) == ["r0"]


def test_inputs_of_different_types_are_not_mixed() -> None:
    queue = EncoderQueue(100)
    for number, value in enumerate(("x", [1], ("q", "d"), "y", [2], ("q", "e"))):
        queue.add(WaitingInput(f"r{number}", value, 1))  # type: ignore[arg-type]
    assert [rids(queue.pop_batch()) for _ in range(3)] == [["r0", "r3"], ["r1", "r4"], ["r2", "r5"]]


def test_a_removed_input_is_not_computed() -> None:
    queue = queue_of(1, 1, 1)
    queue.remove("r1")
    queue.remove("unknown")
    assert rids(queue.pop_batch()) == ["r0", "r2"]


def test_late_inputs_leave_the_queue() -> None:
    queue = EncoderQueue(100)
    queue.add(WaitingInput("late", "x", 1, deadline_s=5.0))
    queue.add(WaitingInput("later", "x", 1, deadline_s=6.0))
    queue.add(WaitingInput("patient", "x", 1))
    assert rids(queue.pop_expired(4.9)) == []
    assert rids(queue.pop_expired(5.0)) == ["late"]
    assert rids(queue.pop_batch()) == ["later", "patient"]


def test_every_input_is_computed_once_and_none_waits_forever() -> None:
    rng = random.Random(3)
    lengths = [rng.randint(1, 80) for _ in range(300)]
    queue = queue_of(*lengths, limit=200)
    seen: list[str] = []
    oldest = 0
    while batch := queue.pop_batch():
        assert len(batch) == 1 or len(batch) * max(one.num_tokens for one in batch) <= 200
        seen += rids(batch)
        while f"r{oldest}" in seen:
            oldest += 1
        assert batch[0].num_tokens == lengths[int(batch[0].rid[1:])]
    assert sorted(seen) == sorted(f"r{number}" for number in range(300))
