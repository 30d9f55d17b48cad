"""Sessions against a model without KV memory, over random interleavings of all operations."""

from __future__ import annotations

import random

import pytest

from .session_play import Play


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_every_turn_gives_the_output_of_its_conversation(seed: int) -> None:
    Play(seed).run(150)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 5, 18, 64])
def test_every_turn_gives_the_output_of_its_conversation_with_a_window_pool(window: int) -> None:
    for seed in range(6):
        Play(window * 100 + seed, window).run(150)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_every_turn_gives_the_output_of_its_conversation_with_a_window_pool_in_many_plays(block: int) -> None:
    for seed in range(5000 + block * 10, 5010 + block * 10):
        Play(seed, random.Random(seed).choice([1, 2, 3, 5, 8, 16, 17, 40, 64, 100])).run(300)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_every_turn_gives_the_output_of_its_conversation_in_100_000_plays(block: int) -> None:
    for seed in range(1000 + block * 10, 1010 + block * 10):
        Play(seed).run(300)
