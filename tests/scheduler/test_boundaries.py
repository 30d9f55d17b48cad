"""Prompts of about the pool's size: each request gets its output, a 400, or a 500 after all tokens that fit."""

from __future__ import annotations

import pytest

from ebbtide.paging import pages_for

from .world import Shape, World, greedy, text


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_every_prompt_length_around_the_capacity_ends_cleanly(page_size: int, max_tokens: int, overlap: int) -> None:
    num_pages = max(128 // page_size, 2)
    capacity = num_pages * page_size
    for prompt_len in range(max(capacity - 2 * page_size, 1), capacity + 2):
        world = World(Shape(num_pages=num_pages, page_size=page_size, overlap=overlap, chunk=64))
        world.generate("big", text("x" * prompt_len), greedy(max_tokens, ignore_eos=True))
        world.generate("behind", text("y"), greedy(2, ignore_eos=True))
        outcomes = world.run(max_steps=60)
        assert outcomes["behind"].finish == "length"
        big = outcomes["big"]
        if pages_for(prompt_len + min(max_tokens, 2) - 1, page_size) > num_pages:
            assert (big.aborts[0].status, big.tokens) == (400, [])
        elif prompt_len + max_tokens - 1 <= capacity:
            assert (big.finish, len(big.tokens), big.aborts) == ("length", max_tokens, [])
        else:
            assert (big.aborts[0].status, big.aborts[0].code) == (500, "kv_cache_exhausted")
            assert len(big.tokens) == capacity - prompt_len + 1 == big.aborts[0].num_output_tokens


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_prompt_as_large_as_the_pool_beside_running_requests_ends_too(overlap: int) -> None:
    world = World(Shape(num_pages=32, overlap=overlap, conservativeness=0.02))
    for index in range(3):
        world.generate(f"r{index}", text(f"{index} prompt"), greedy(40, ignore_eos=True))
    for _ in range(5):
        world.step()
    world.generate("big", text("x" * 127), greedy(2, ignore_eos=True))
    world.generate("behind", text("y"), greedy(2, ignore_eos=True))
    outcomes = world.run(max_steps=400)
    assert [len(outcomes[rid].tokens) for rid in ("r0", "r1", "r2", "big", "behind")] == [40, 40, 40, 2, 2]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_endless_short_arrivals_cannot_keep_a_long_prompt_out(bound: int) -> None:
    """A long request among a stream of short ones ends after at most ``bound`` retractions."""
    world = World(Shape(num_pages=40, num_rows=8, chunk=16, conservativeness=0.02, max_retractions=bound))
    world.generate("long", text("x" * 90), greedy(40, ignore_eos=True))
    for index in range(400):
        world.generate(f"s{index}", text(f"{index % 7} short"), greedy(1 + index % 12, ignore_eos=True))
        world.step()
        world.read()
        if "long" in world.outcomes and world.outcomes["long"].finish:
            break
    assert world.outcomes["long"].finish == "length"
    assert len(world.outcomes["long"].tokens) == 40
    outcomes = world.run()
    spent = [outcome.pressure.num_retractions for outcome in outcomes.values() if outcome.pressure]
    assert max(spent, default=0) <= bound
