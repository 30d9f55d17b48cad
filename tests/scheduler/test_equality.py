"""Memory is invisible: a small pool gives the tokens of an ample one, and every page is back afterwards."""

from __future__ import annotations

import random

import pytest

from .loads import ample, assert_same, demand, play, random_load
from .world import Shape


def random_shape(seed: int, pages_needed: int, page_size: int) -> Shape:
    """A pool of one to two times what the largest request needs alone."""
    rng = random.Random(seed * 7919)
    return Shape(
        num_pages=pages_needed + rng.randint(0, pages_needed),
        page_size=page_size,
        num_rows=rng.choice([4, 32]),
        chunk=rng.choice([1, 5, 16, 64]),
        policy=rng.choice(["fcfs", "lpm", "priority"]),
        overlap=rng.choice([1, 2]),
        cache=rng.random() < 0.9,
        max_retractions=rng.choice([3, 3, 1, 0]),
        conservativeness=rng.choice([0.02, 0.1, 1.0]),
    )


def check(seed: int) -> int:
    """Play one random load twice and compare; returns how many retractions the small pool saw."""
    load = random_load(seed, aborts=seed % 3 == 0)
    page_size = (1, 4, 16)[seed % 3]
    expected = play(load, ample(page_size))
    shape = random_shape(seed, demand(load, page_size), page_size)
    seen = play(load, shape)
    assert_same(load, expected, seen)
    return seen.scheduler.state.metrics.totals["num_retracted_requests_total"]


@pytest.mark.parametrize("first", range(0, 120, 15))
def test_a_small_pool_gives_the_tokens_of_an_ample_one(first: int) -> None:
    for seed in range(first, first + 15):
        check(seed)


def test_the_random_loads_do_retract() -> None:
    assert sum(check(seed) for seed in range(20)) > 10


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 6000, 100))
def test_a_small_pool_gives_the_tokens_of_an_ample_one_at_length(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)
