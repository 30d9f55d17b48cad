"""Every retraction is counted, is in an event and is in the log, whatever caused it."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest

from .loads import play, random_load
from .world import Shape

WARNING = re.compile(r"Retract requests \(\w+\): (.*?); \d+ tokens gained")
VICTIM = re.compile(r"(\S+) \(\d+ outputs, \d+ pages\)")


SHAPES = {
    "chunks of half a page": Shape(num_pages=24, page_size=8, chunk=4, conservativeness=0.02),
    "many rows": Shape(num_pages=24, chunk=2, num_rows=16, conservativeness=0.02),
    "priorities": Shape(num_pages=24, page_size=8, chunk=6, policy="priority", conservativeness=0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_retraction_of_a_random_load_is_in_an_event_and_in_the_log(
    shape: Shape, overlap: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    total = 0
    for seed in range(10):
        caplog.clear()
        world = play(random_load(seed, aborts=True), replace(shape, overlap=overlap))
        events = [victim.rid for event in world.events for victim in event.victims]
        matches = [WARNING.match(record.message) for record in caplog.records]
        logged = [rid for match in matches if match for rid in VICTIM.findall(match[1])]
        assert len(events) == world.scheduler.state.metrics.totals["num_retracted_requests_total"], f"seed {seed}"
        assert events == logged, f"seed {seed}"
        assert all(event.victims or event.aborted for event in world.events)
        total += len(events)
    assert total > 10


@pytest.mark.slow
def test_a_protected_request_is_not_retracted_again() -> None:
    for seed in range(10):
        shape = Shape(num_pages=24, page_size=8, chunk=4, conservativeness=0.02, max_retractions=1)
        world = play(random_load(seed), shape)
        victims = [victim for event in world.events for victim in event.victims]
        assert all(victim.num_retractions == 1 for victim in victims), f"seed {seed}"
