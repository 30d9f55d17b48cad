"""Sessions against a model without memory, over random interleavings of everything that can happen to them."""

from __future__ import annotations

import pytest

from .session_play import Play


@pytest.mark.parametrize("seed", range(24))
def test_every_turn_says_what_its_conversation_says(seed: int) -> None:
    Play(seed).run(150)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_every_turn_says_what_its_conversation_says_a_hundred_thousand_times(block: int) -> None:
    for seed in range(1000 + block * 10, 1010 + block * 10):
        Play(seed).run(300)
