from __future__ import annotations

import dataclasses

import pytest

from ebbtide.scheduler.request import Request

from .make import request
from .world import World, greedy, text

RESET = {"computed", "num_confirmed", "sent_pages", "row_ready"}
HISTORY = {"retraction_count", "retracted_stain"}


def test_a_request_cannot_end_twice() -> None:
    world = World()
    world.generate("a", text("tide"), greedy(4))
    world.step()
    (req,) = world.scheduler.state.running
    lifecycle = world.scheduler.state.lifecycle
    lifecycle.finish(req, "stop")
    with pytest.raises(ValueError, match="request a cannot go from FINISHED to RUNNING"):
        lifecycle.start(req, 0.0)


def test_a_retraction_resets_what_describes_memory_and_nothing_else() -> None:
    req = request(outputs=3)
    req.computed = req.num_confirmed = req.sent_pages = 6
    req.row_ready = req.started = True
    req.samples_in_flight = req.steps_in_flight = 1
    before = dataclasses.asdict(dataclasses.replace(req, sibling_choices=[]))
    req.reset_for_retract(max_retractions=3)
    after = dataclasses.asdict(dataclasses.replace(req, sibling_choices=[]))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == RESET | {"is_retracted", "history"}
    assert {name for name in before["history"] if before["history"][name] != after["history"][name]} == HISTORY


@pytest.mark.parametrize(("bound", "protected_after"), [(0, 1), (1, 1), (3, 3)])
def test_a_request_is_protected_after_the_maximum_number_of_retractions(bound: int, protected_after: int) -> None:
    req = request()
    history = []
    for _ in range(4):
        req.reset_for_retract(max_retractions=bound)
        history.append(req.protected)
    assert history.index(True) + 1 == protected_after
    assert all(history[protected_after - 1 :])


def test_without_a_maximum_number_of_retractions_a_request_is_never_protected() -> None:
    req = request()
    for _ in range(50):
        req.reset_for_retract(max_retractions=-1)
    assert not req.protected


def test_the_last_output_tokens_kv_is_never_needed() -> None:
    req = request(prompt=5, max_tokens=3)
    assert req.max_kv_tokens == 7


def test_outputs_are_what_follows_the_prompt() -> None:
    req: Request = request(prompt=4, outputs=2)
    assert (req.num_outputs, req.outputs) == (2, [4, 5])
    assert str(req) == "request a"
