"""The pool size does not change outputs: a small pool gives the tokens of an ample one and frees every page."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ebbtide.retract_policies import RETRACT_POLICIES

from .loads import Arrival, ample, assert_same, demand, play, random_load
from .world import Shape, World

pytestmark = pytest.mark.slow


def random_shape(seed: int, expected: World) -> Shape:
    """A pool of 40 to 100 % of the peak use of the ample one, but no smaller than the largest request."""
    rng = random.Random(seed * 7919)
    shape = Shape(
        num_pages=max(demand(expected), int(expected.peak_pages * rng.uniform(0.4, 1.0))),
        page_size=expected.shape.page_size,
        num_rows=rng.choice([4, 32]),
        chunk=rng.choice([1, 5, 16, 64]),
        policy=rng.choice(["fcfs", "lpm", "priority"]),
        overlap=rng.choice([1, 2]),
        cache=rng.random() < 0.9,
        max_retractions=(3, 1, 0)[seed % 3],
        retract_policy=rng.choice(list(RETRACT_POLICIES)),
        conservativeness=rng.choice([0.02, 0.02, 0.5]),
        retract_interval=rng.choice([0, 0, 13]),
        host_pages=rng.choice([0, 0, 0, 50]),
    )
    return replace(shape, policy="fair") if seed % 5 == 4 else shape


def check(seed: int) -> int:
    """Run one random load twice and compare. Returns the number of retractions in the small pool."""
    return compare(random_load(seed, aborts=seed % 4 == 0), seed)


def compare(load: list[Arrival], seed: int) -> int:
    """``check`` for any load."""
    expected = play(load, ample((1, 4, 16, 4)[seed // 3 % 4]))
    shape = random_shape(seed, expected)
    seen = play(load, shape)
    assert_same(load, expected, seen)
    spent = [outcome.pressure for outcome in seen.outcomes.values() if outcome.pressure is not None]
    assert max((entry.num_retractions for entry in spent), default=0) <= shape.max_retractions
    assert seen.scheduler.state.num_retracted == 0
    return seen.scheduler.state.metrics.totals["num_retracted_requests_total"]


@pytest.mark.parametrize("first", [0, 20])
def test_a_small_pool_gives_the_tokens_of_an_ample_one(first: int) -> None:
    num_retractions = sum(check(seed) for seed in range(first, first + 20))
    assert num_retractions > 10


@pytest.mark.soak
@pytest.mark.parametrize("first", [40, *range(1000, 3400, 100)])
def test_a_small_pool_gives_the_tokens_of_an_ample_one_at_length(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
