"""The pool of a sliding window with its prefix cache: a small pool gives the outputs of an ample one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import SWA_POOL, PoolInfo, TextParams
from ebbtide.paging import pages_for
from ebbtide.retract_policies import RETRACT_POLICIES
from ebbtide.scheduler.memory.sliding_window.window_pool import WindowPool
from ebbtide.scheduler.request import Request

from ..loads import Arrival, ample, assert_same, demand, play, random_load
from ..mutations.witnesses import Witness, noticed_by
from ..world import Shape, World, greedy, text


def swa(num_pages: int, window: int, page_size: int = 4) -> PoolInfo:
    return PoolInfo(num_pages, page_size, SWA_POOL, window)


def window_pool(world: World) -> WindowPool:
    pool = world.scheduler.state.kv_pools[1]
    assert isinstance(pool, WindowPool)
    return pool


def least_pages(window: int, page_size: int) -> int:
    """The minimum number of pages for a request of any length: its window and the page that it writes to."""
    return pages_for(window - 1, page_size) + 1


def random_shape(seed: int, expected: World, window: int) -> Shape:
    """Pools of which one or both are about as large as the largest request."""
    rng = random.Random(seed * 7919 + window)
    size = expected.shape.page_size
    alone = demand(expected)
    num_pages = rng.choice([alone, alone + alone // 2, 3 * alone])
    spare = rng.choice([0, 1, 4, 12, 60])
    return Shape(
        num_pages=num_pages,
        page_size=size,
        num_rows=rng.choice([4, 32]),
        chunk=rng.choice([1, 5, 16, 64]),
        policy=rng.choice(["fcfs", "lpm", "priority"]),
        overlap=rng.choice([1, 2]),
        cache=rng.random() < 0.9,
        max_retractions=(3, 1, 0)[seed % 3],
        retract_policy=rng.choice(list(RETRACT_POLICIES)),
        conservativeness=rng.choice([0.02, 0.02, 0.5]),
        retract_interval=rng.choice([0, 0, 13]),
        max_samples=rng.choice([1, 1, 1, 3]),
        second=swa(min(alone, least_pages(window, size)) + spare, window, size),
        host_pages=rng.choice([0, 0, 50]),
        second_host_pages=rng.choice([8, 50]),
    )


def compare(load: list[Arrival], seed: int, window: int) -> int:
    """Run a load in an ample and in a small world. Returns the number of retractions in the small one."""
    size = (1, 4, 16, 4)[seed // 3 % 4]
    expected = play(load, replace(ample(size), second=swa(20_000 // size, window, size)))
    shape = random_shape(seed, expected, window)
    seen = play(load, shape)
    assert_same(load, expected, seen)
    seen.pool.tree_cache.clear()
    assert window_pool(seen).available_pages == window_pool(seen).capacity
    assert seen.pool.available_pages == seen.pool.capacity
    return seen.scheduler.state.metrics.totals["num_retracted_requests_total"]


def end_of(world: World, rid: str) -> int:
    """Run the world until all requests have ended. Returns the number of cached tokens of ``rid``."""
    return world.run()[rid].cached_tokens


def test_pages_behind_the_window_leave_when_a_step_is_settled() -> None:
    """With a window of 20 tokens, a token reads up to 5 pages of 4 tokens before the page that it is written to."""
    world = World(Shape(chunk=8, second=swa(7, 20)))
    world.generate("a", text("x" * 100), greedy(40, ignore_eos=True))
    held: list[int] = []
    while len(held) < 3 or not world.scheduler.idle:
        world.step()
        held += [len(pages.pages) for pages in window_pool(world).held.values()]
    assert max(held) == 6  # after a step; while a chunk of 8 tokens is computed, 7
    assert len(world.outcomes["a"].tokens) == 40
    assert not world.events


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_prompt_of_any_length_runs_in_a_pool_of_its_window_and_one_page(overlap: int) -> None:
    small = World(Shape(chunk=64, overlap=overlap, second=swa(6, 20)))
    large = World(Shape(chunk=64, overlap=overlap, second=swa(600, 20)))
    for world in (small, large):
        world.generate("a", text("long prompt " * 30), greedy(40, ignore_eos=True))
        world.run()
    assert small.outcomes["a"].tokens == large.outcomes["a"].tokens
    assert not small.events


def test_a_pool_smaller_than_the_window_refuses_what_it_cannot_hold() -> None:
    world = World(Shape(second=swa(4, 20)))
    world.generate("a", text("x" * 17), greedy(4))
    (abort,) = world.run()["a"].aborts
    assert (abort.status, abort.code) == (400, "context_length_exceeded")
    assert "KV pool swa holds only 16" in abort.message


def test_many_long_requests_run_at_once_if_only_their_windows_need_room() -> None:
    world = World(Shape(num_pages=2000, chunk=256, conservativeness=1e-6, second=swa(8 * 7 + 64, 20)))
    for number in range(8):
        world.generate(f"r{number}", text(f"{number} " * 100), greedy(40, ignore_eos=True))
    most = 0
    while most < 8 and world.turns < 100:
        world.step()
        most = max(most, len(world.scheduler.state.running))
    assert most == 8
    world.run()


def test_a_shortage_of_the_window_pool_is_named() -> None:
    world = World(Shape(num_pages=400, chunk=16, conservativeness=1e-6, second=swa(10, 20)))
    for rid in ("a", "b", "c"):
        world.generate(rid, text(rid * 18), greedy(40, ignore_eos=True))
    outcomes = world.run()
    assert {event.pool for event in world.events} == {"swa"}
    assert [len(outcomes[rid].tokens) for rid in ("a", "b", "c")] == [40, 40, 40]


def test_a_follow_up_matches_up_to_the_last_full_page() -> None:
    world = World(Shape(second=swa(64, 20)))
    prompt = text("the first turn of a conversation, which is longer than the window")
    world.generate("a", prompt, greedy(21, ignore_eos=True))
    answer = world.run()["a"].tokens
    follow_up = [*prompt, *answer, *text("second")]
    world.generate("b", follow_up, greedy(4))
    assert end_of(world, "b") == (len(prompt) + 20) // 4 * 4


def cached_prompt(world: World) -> list[int]:
    """Cache 100 tokens of a prompt, chunk by chunk."""
    prompt = text("a prompt that is much longer than its window of tokens, and is read in several chunks " * 2)[:101]
    world.generate("first", prompt, greedy(1))
    world.run()
    return prompt


def test_a_match_ends_where_the_whole_window_is_cached() -> None:
    world = World(Shape(chunk=32, second=swa(64, 20)))
    prompt = cached_prompt(world)
    spans = window_pool(world).spans
    assert spans.store.evictable_pages == 25
    assert spans.evict(18) == 18
    world.generate("whole", prompt, greedy(1))
    assert end_of(world, "whole") == 100
    world.generate("branch", [*prompt[:60], *text("another end")], greedy(1))
    assert end_of(world, "branch") == 0


def test_a_match_has_no_side_effects() -> None:
    world = World(Shape(chunk=32, second=swa(64, 20)))
    prompt = cached_prompt(world)
    req = Request("a", 0, len(prompt), prompt, greedy(1), TextParams(), 4)
    before = window_pool(world).accounting(), world.pool.accounting()
    matches = [world.pool.tree_cache.match_prefix(req, limit) for limit in (None, None, 9)]
    assert [len(match.pages) for match in matches] == [25, 25, 9]
    assert matches[0].num_locked_elsewhere == [0]
    assert (window_pool(world).accounting(), world.pool.accounting()) == before


def test_eviction_takes_pages_deep_inside_a_path_before_older_ends() -> None:
    world = World(Shape(chunk=32, second=swa(64, 20)))
    world.generate("older", text("an older conversation that stays cached"), greedy(1))
    world.run()
    prompt = cached_prompt(world)
    deep = window_pool(world).spans.store.evictable_pages - 10
    assert window_pool(world).spans.evict(deep) == deep
    world.generate("both ends", text("an older conversation that stays cached"), greedy(1))
    assert end_of(world, "both ends") == 36
    world.generate("newer", prompt, greedy(1))
    assert end_of(world, "newer") == 100


def test_recomputed_pages_return_to_the_nodes_that_lost_them() -> None:
    world = World(Shape(chunk=32, second=swa(64, 20)))
    prompt = cached_prompt(world)
    assert window_pool(world).spans.evict(25) == 25
    for rid, cached in (("again", 0), ("once more", 100)):
        world.generate(rid, prompt, greedy(1))
        assert end_of(world, rid) == cached
    assert world.pool.accounting().evictable == 25


@noticed_by(Witness.LEDGER_AUDIT)
def test_requests_that_share_a_suspect_page_of_a_window_are_recomputed() -> None:
    world = World(Shape(memory_check="quarantine", second=swa(64, 20)))
    prompt = text("a prompt that two of three requests share")
    world.generate("a", prompt, greedy(9, ignore_eos=True))
    world.step()
    world.generate("b", prompt, greedy(9, ignore_eos=True))
    world.generate("c", text("something different"), greedy(9, ignore_eos=True))
    world.step()
    pool = window_pool(world)
    pool.ledger.assign(pool.held["a"].pages[:1], None)
    world.scheduler.on_idle()
    assert [req.rid for req in world.scheduler.state.running] == ["c"]
    outcomes = world.run()
    assert [len(outcomes[rid].tokens) for rid in "abc"] == [9, 9, 9]
    assert pool.capacity == 63
    assert pool.available_pages + pool.spans.store.evictable_pages == 63


@noticed_by(Witness.LEDGER_AUDIT)
def test_the_audit_names_leaked_pages_of_a_window() -> None:
    world = World(Shape(second=swa(64, 20)))
    world.generate("a", text("some prompt"), greedy(9, ignore_eos=True))
    world.step()
    pool = window_pool(world)
    leaked = pool.allocator.take(1, world.scheduler.state.running[0])
    pool.spans.store.evictable_pages += 1
    with pytest.raises(InvariantViolation, match=rf"leaked pages .expected - free - tree - running.: .{leaked[0]}."):
        world.scheduler.on_idle()


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 2, 7, 40])
def test_a_small_window_pool_gives_the_tokens_of_an_ample_one(window: int) -> None:
    num_retractions = sum(compare(random_load(seed, aborts=seed % 4 == 0), seed, window) for seed in range(4))
    assert num_retractions > 0


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 3400, 100))
def test_a_small_window_pool_gives_the_tokens_of_an_ample_one_at_length(first: int) -> None:
    for seed in range(first, first + 100):
        window = random.Random(seed).choice([1, 2, 3, 5, 8, 16, 17, 40, 64, 100])
        compare(random_load(seed, aborts=seed % 4 == 0), seed, window)
