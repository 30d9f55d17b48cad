"""The scheduler's observations of each request: made once and with the right time in all cases."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import AbortReq, FinishReq, GenerateReq
from ebbtide.scheduler.lifecycle import Lifecycle
from ebbtide.scheduler.metrics import SchedulerMetrics
from ebbtide.scheduler.request_memory import Memory

from .make import request
from .world import Shape, World, greedy, text

PHASES = ("queue_time_seconds", "prefill_time_seconds", "decode_time_seconds", "inference_time_seconds")


def observed(world: World) -> dict[str, list[float]]:
    """All samples so far. The world's clock counts steps."""
    world.receive()  # time passes, so that the last step's events get theirs
    found: dict[str, list[float]] = defaultdict(list)
    found |= world.scheduler.snapshot().observations
    return found


def test_the_phases_of_a_request_add_up() -> None:
    world = World(Shape(chunk=4))
    world.generate("a", text("twelve bytes"), greedy(5, ignore_eos=True))
    world.run()
    seen = observed(world)
    assert [seen[name] for name in PHASES] == [[0.0], [3.0], [4.0], [7.0]]  # three chunks, then four more tokens
    assert seen["time_per_output_token_seconds"] == [1.0]
    assert (seen["request_prompt_tokens"], seen["request_generation_tokens"]) == ([12], [5])
    assert seen["scheduler_step_tokens"] == [4, 4, 4, 1, 1, 1, 1]


def test_a_retraction_repeats_no_observation() -> None:
    pressed = World(Shape(num_pages=10, conservativeness=0.1, retract_interval=7))
    for rid in "abc":
        pressed.generate(rid, text(f"prompt {rid}"), greedy(12, ignore_eos=True))
    pressed.run()
    seen = observed(pressed)
    assert pressed.scheduler.state.metrics.totals["num_retracted_requests_total"] > 0
    for name in (*PHASES, "request_prompt_tokens", "request_generation_tokens", "retractions_per_request"):
        assert len(seen[name]) == 3, name
    for prefill, decode, whole in zip(*(sorted(seen[name]) for name in PHASES[1:]), strict=True):
        assert 0 <= prefill <= whole
        assert 0 <= decode <= whole


def test_an_aborted_request_has_no_decode_time_and_no_size() -> None:
    world = World()
    world.generate("a", text("hello"), greedy(50, ignore_eos=True))
    for _ in range(3):
        world.step()
    world.send(AbortReq("a", "client"))
    world.run()
    seen = observed(world)
    assert len(seen["prefill_time_seconds"]) == 1
    assert not any(seen[name] for name in (*PHASES[2:], "request_prompt_tokens", "time_per_output_token_seconds"))


def test_a_request_that_a_stop_string_ends_has_the_size_that_its_client_got() -> None:
    world = World()
    world.generate("a", text("hello"), greedy(50, ignore_eos=True))
    for _ in range(6):
        world.step()
    world.send(FinishReq("a", 2))
    world.run()
    seen = observed(world)
    assert seen["request_generation_tokens"] == [2]
    assert len(seen["decode_time_seconds"]) == 1


def test_one_output_token_has_no_time_per_token() -> None:
    world = World()
    world.generate("a", text("hello"), greedy(1))
    world.run()
    seen = observed(world)
    assert seen["decode_time_seconds"] == [0.0]
    assert seen["time_per_output_token_seconds"] == []


def test_a_token_before_the_first_recorded_start_is_not_timed() -> None:
    metrics = SchedulerMetrics()
    metrics.sampled(request(outputs=1))
    metrics.stamp(1.0)
    assert metrics.snapshot({}).observations == {}


@pytest.mark.parametrize("error", [InvariantViolation("seeded"), RuntimeError("seeded")], ids=["repaired", "refused"])
@pytest.mark.parametrize("owner", [Lifecycle, Memory])
def test_a_request_is_counted_once_if_its_message_fails(
    error: Exception, owner: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair of the accounting handles the message again; another error refuses the request."""
    name = {Lifecycle: "enqueue", Memory: "never_fits"}[owner]
    original, errors = getattr(owner, name), [error]

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, fails_once)
    world = World(Shape(memory_check="quarantine", confines_faults=True))
    world.send(GenerateReq(("a", "b"), text("hello"), greedy(3, ignore_eos=True)))
    world.run()
    totals = world.scheduler.snapshot().totals
    ended = {key: total for key, total in totals.items() if key.startswith(("num_requests_", "num_aborted_"))}
    expected = (
        "num_requests_total{finish_reason=length}"
        if isinstance(error, InvariantViolation)
        else "num_aborted_requests_total{reason=internal_error}"
    )
    assert (totals["num_received_requests_total"], ended) == (2, {expected: 2})
