"""Received requests = ended + running + waiting at every moment of a random load, also when the engine dies."""

from __future__ import annotations

import random

import pytest

from ebbtide.errors import Rejected
from ebbtide.messages import AbortReq, FinishReq, GenerateReq, SamplingParams, SessionTurn, Stats
from ebbtide.server.metrics.metrics import FrontMetrics

from ...scheduler.world import Shape, World, text
from .request_terms import RECEIVED, checked_terms

SHAPE = Shape(num_pages=24, num_rows=4, max_queued=12, sessions=True, conservativeness=0.1)
ACTIONS = ("send", "abort", "stop", "kill", "refuse", "snapshot", "step")
WEIGHTS = (18, 6, 4, 1, 2, 20, 49)


def scrape(metrics: FrontMetrics) -> dict[str, float]:
    """Return the terms of the equation, each summed over its labels, after a check of the equation."""
    return checked_terms(metrics.render().decode())


def aborted(metrics: FrontMetrics, reason: str) -> float:
    lines = metrics.render().decode().splitlines()
    (line,) = [x for x in lines if x.startswith("ebbtide:num_aborted_requests_total{") and f'reason="{reason}"' in x]
    return float(line.rpartition(" ")[2])


class Load:
    """Sends random requests to one engine after another and counts them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.metrics = FrontMetrics("sim")
        self.world = World(SHAPE)
        self.num_asked = 0
        self.num_sent = 0  # to the current engine
        self.num_lost = 0  # without an end in the snapshots of their engine

    def send(self) -> None:
        """Send a batch of prompts with n choices each. Some are too long, some belong to an unknown session."""
        n = self.rng.choice((1, 1, 4))
        session = SessionTurn("unknown") if self.rng.random() < 0.05 else None
        for index in range(self.rng.choice((1, 1, 3))):
            rids = tuple(f"{self.num_asked}-{choice}" for choice in range(n))
            prompt = text("x" * self.rng.choice((3, 20, 200)))
            sampling = SamplingParams(max_tokens=self.rng.randrange(1, 30), temperature=0.0)
            self.world.send(GenerateReq(rids, prompt, sampling, session=session, num_before=index * n))
            self.num_asked += n
            self.num_sent += n

    def abort(self) -> None:
        rids = list(self.world.scheduler.state.requests)
        if rids:
            self.world.send(AbortReq(self.rng.choice(rids), "client"))

    def stop(self) -> None:
        """End a running request at a stop string."""
        running = self.world.scheduler.state.running
        if running:
            self.world.send(FinishReq(self.rng.choice(running).rid, 0))

    def kill(self) -> None:
        """Replace the engine. Its last snapshot may be old."""
        before = scrape(self.metrics)
        self.metrics.on_scheduler_death(self.num_sent)
        after = scrape(self.metrics)
        self.num_lost += int(after["num_aborted_requests_total"] - before["num_aborted_requests_total"])
        self.world, self.num_sent = World(SHAPE), 0
        assert after[RECEIVED] == self.num_asked
        assert after["num_running_reqs"] == after["num_queue_reqs"] == 0

    def refuse(self) -> None:
        """The front refuses a prompt that is longer than the context."""
        self.num_asked += 1
        with pytest.raises(Rejected), self.metrics.count_refusals():
            raise Rejected("too long", code="context_length_exceeded")

    def snapshot(self) -> None:
        self.metrics.apply_stats(self.world.scheduler.snapshot())

    def step(self) -> None:
        self.world.step()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_requests_add_up_at_every_moment_of_a_random_load(seed: int) -> None:
    load = Load(seed)
    for action in load.rng.choices(ACTIONS, WEIGHTS, k=400):
        getattr(load, action)()
        if action in ("kill", "refuse", "snapshot"):  # the other actions do not change the metrics of the front process
            scrape(load.metrics)
    load.kill()
    load.send()
    load.world.run()
    load.snapshot()
    totals = scrape(load.metrics)
    assert totals[RECEIVED] == load.num_asked
    assert totals["num_running_reqs"] == totals["num_queue_reqs"] == 0
    assert aborted(load.metrics, "engine_dead") == load.num_lost
    for reason in ("engine_dead", "client", "queue_full", "context_length_exceeded"):
        assert aborted(load.metrics, reason) > 0, reason


def test_the_death_of_an_engine_counts_choices_and_not_http_requests() -> None:
    metrics = FrontMetrics("sim")
    totals: dict[str, float] = {RECEIVED: 7, "num_requests_total{finish_reason=stop}": 2}
    metrics.apply_stats(Stats({"num_running_reqs": 2, "num_queue_reqs": 3}, totals, {}))
    metrics.on_scheduler_death(11)
    assert tuple(scrape(metrics).values()) == (11, 2, 9, 0, 0)
    assert aborted(metrics, "engine_dead") == 9
