"""Two plans in flight, with random events between dispatch and collect, for 10,000 steps."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ebbtide.messages import SWA_POOL, AbortReq, PoolInfo, SamplingParams
from ebbtide.paging import pages_for

from .world import Outcome, Shape, World, greedy, text

REQUESTS = 5


def solo(prompt: list[int], sampling: SamplingParams, window: int, num_states: int) -> list[int]:
    second = PoolInfo(2000, 4, SWA_POOL, window) if window else None
    world = World(Shape(num_pages=2000, num_rows=1, chunk=4096, cache=False, second=second, state_slots=num_states))
    world.generate("solo", prompt, sampling)
    return world.run()["solo"].tokens


class Fuzz:
    """A world in which dispatch and collect alternate at random, and the requests that are open in it.

    window: size of the window of a second pool, which is about as small as the first one; 0 for one pool.
    num_states: number of slots of a pool of recurrent states; 0 for no such pool.
    """

    def __init__(self, seed: int, steps: int, window: int = 0, host_pages: int = 0, num_states: int = 0) -> None:
        self.rng = random.Random(seed)
        self.steps = steps
        self.window = window
        shape = Shape(num_pages=26, num_rows=4, chunk=8, overlap=2, conservativeness=0.02, retract_interval=7)
        if window:
            second = PoolInfo(min(2 * pages_for(window, 4) + 4, 26), 4, SWA_POOL, window)
            shape = replace(shape, second=second, host_pages=host_pages)
        self.num_states = num_states
        self.world = World(replace(shape, state_slots=num_states))
        self.known: dict[str, list[int]] = {}
        self.open: dict[str, tuple[list[int], SamplingParams]] = {}
        self.serial = 0

    def run(self) -> World:
        """Run until all steps are done and every request has ended."""
        while self.world.steps < self.steps or self.open:
            self.world.turns = 0
            self.arrive()
            self.act()
            self.judge()
        self.world.run()
        return self.world

    def arrive(self) -> None:
        """Keep a few requests open."""
        rng = self.rng
        while len(self.open) < REQUESTS and self.world.steps < self.steps:
            prompt = text(f"{rng.randint(0, 3)} " + "w" * rng.randint(0, 30))
            sampling = greedy(rng.randint(1, 30), ignore_eos=rng.random() < 0.5)
            self.world.generate(f"r{self.serial}", prompt, sampling)
            self.open[f"r{self.serial}"] = (prompt, sampling)
            self.serial += 1

    def act(self) -> None:
        """Abort, dispatch and collect, each at random."""
        rng, world = self.rng, self.world
        action = rng.random()
        if action < 0.04 and self.open:
            world.send(AbortReq(rng.choice(list(self.open)), "client"))
        if action < 0.6:
            world.receive()
            world.dispatch()
        if world.scheduler.num_in_flight and rng.random() < 0.7:
            world.collect()
        world.read()

    def judge(self) -> None:
        """Check that each request ended exactly once, with the tokens that it gets when it runs alone."""
        for rid in [rid for rid in self.open if self.world.outcomes.get(rid, Outcome()).finish]:
            prompt, sampling = self.open.pop(rid)
            outcome = self.world.outcomes.pop(rid)
            key = f"{prompt}{sampling}"
            if key not in self.known:
                self.known[key] = solo(prompt, sampling, self.window, min(self.num_states, 1))
            tokens = self.known[key]
            assert outcome.ends == 1
            assert outcome.tokens == (tokens[: len(outcome.tokens)] if outcome.finish == "abort" else tokens)


def fuzz(seed: int, steps: int, window: int = 0, host_pages: int = 0, num_states: int = 0) -> None:
    totals = Fuzz(seed, steps, window, host_pages, num_states).run().scheduler.state.metrics.totals
    assert host_pages == 0 or totals["kv_restored_tokens_total"] > 0
    assert totals["num_retracted_requests_total"] > steps // 40
    assert totals["num_aborted_requests_total{reason=client}"] > steps // 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_position_gets_exactly_one_token_for_any_events_in_between(seed: int) -> None:
    fuzz(seed, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("host_pages", [0, 40], ids=["recompute", "host tier"])
def test_every_position_gets_exactly_one_token_with_a_window_pool(host_pages: int) -> None:
    fuzz(2, 500, 18, host_pages)


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 18])
def test_every_position_gets_exactly_one_token_with_recurrent_states(window: int) -> None:
    fuzz(3, 500, window, num_states=6)


@pytest.mark.soak
@pytest.mark.parametrize("num_states", [3, 6, 20])
@pytest.mark.parametrize("window", [0, 18])
def test_every_position_gets_exactly_one_token_for_ten_thousand_steps_with_recurrent_states(
    window: int, num_states: int
) -> None:
    fuzz(30 + num_states, 10_000, window, num_states=num_states)


@pytest.mark.soak
@pytest.mark.parametrize("host_pages", [0, 40], ids=["recompute", "host tier"])
@pytest.mark.parametrize("window", [1, 6, 18, 64])
def test_every_position_gets_exactly_one_token_for_ten_thousand_steps_with_a_window_pool(
    window: int, host_pages: int
) -> None:
    fuzz(20 + window, 10_000, window, host_pages)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 14))
def test_every_position_gets_exactly_one_token_for_ten_thousand_steps(seed: int) -> None:
    fuzz(seed, 10_000)
