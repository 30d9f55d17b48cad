"""The pool of recurrent states: slots of running requests, and the states from which later requests start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import SWA_POOL, AbortReq, PoolInfo
from ebbtide.scheduler.memory.recurrent_state.state_pool import StatePool

from ..loads import Arrival, ample, assert_same, demand, play, random_load
from ..mutations.witnesses import Witness, noticed_by
from ..session_world import SessionWorld
from ..world import Shape, World, greedy, text

PROMPT = text("a prompt of 22 letters")


def states(world: World) -> StatePool:
    pool = world.scheduler.state.kv_pools[-1]
    assert isinstance(pool, StatePool)
    return pool


def cached_tokens(world: World, rid: str, prompt: list[int], num_outputs: int = 4) -> int:
    """Run one request. Returns the number of prompt tokens that it took from the cache."""
    world.generate(rid, prompt, greedy(num_outputs, ignore_eos=True))
    return world.run()[rid].cached_tokens


def same_without_cache(world: World, rid: str, prompt: list[int]) -> bool:
    """True if the request has the output that it has without a cache."""
    alone = World(Shape(cache=False, state_slots=1))
    alone.generate(rid, prompt, greedy(len(world.outcomes[rid].tokens), ignore_eos=True))
    return alone.run()[rid].tokens == world.outcomes[rid].tokens


def test_a_running_request_has_one_slot_whatever_its_length() -> None:
    world = World(Shape(cache=False, state_slots=2))
    world.generate("a", PROMPT * 4, greedy(40, ignore_eos=True))
    world.generate("b", PROMPT, greedy(3, ignore_eos=True))
    world.step()
    assert (states(world).available_pages, states(world).uncached) == (1, 1)
    world.run()
    assert (states(world).available_pages, states(world).uncached) == (2, 0)


def test_requests_wait_for_a_slot_and_nobody_is_retracted() -> None:
    world = World(Shape(state_slots=2))
    for number in range(6):
        world.generate(f"r{number}", text(f"{number} " * 10), greedy(20, ignore_eos=True))
    most = 0
    while not world.scheduler.idle or world.inbox:
        world.step()
        most = max(most, len(world.scheduler.state.running))
    assert (most, world.events) == (2, [])
    assert all(len(outcome.tokens) == 20 for outcome in world.run().values())


@pytest.mark.parametrize(("page_size", "expected"), [(1, 21), (4, 20), (16, 16), (32, 0)])
def test_an_equal_prompt_starts_after_its_last_full_page(page_size: int, expected: int) -> None:
    world = World(Shape(page_size=page_size, state_slots=8))
    assert cached_tokens(world, "a", PROMPT) == 0
    assert cached_tokens(world, "b", PROMPT) == expected
    assert world.outcomes["a"].tokens == world.outcomes["b"].tokens


def test_choices_of_one_prompt_start_from_one_checkpoint() -> None:
    world = World(Shape(state_slots=8))
    load = [Arrival(0, "r", PROMPT, greedy(9, ignore_eos=True), choices=3)]
    seen = play(load, world.shape)
    assert [seen.outcomes[f"r.{index}"].cached_tokens for index in range(3)] == [0, 20, 20]


def test_a_follow_up_starts_after_an_answer_that_ends_at_a_page_boundary() -> None:
    world = World(Shape(page_size=4, state_slots=8, save_every=1000))
    cached_tokens(world, "a", PROMPT, num_outputs=11)  # the state is the one after 22 + 11 - 1 tokens
    follow_up = [*PROMPT, *world.outcomes["a"].tokens, *text("next")]
    assert cached_tokens(world, "b", follow_up) == 32
    assert same_without_cache(world, "b", follow_up)


def test_a_follow_up_starts_from_the_last_output_token_that_was_kept() -> None:
    world = World(Shape(page_size=4, state_slots=8, save_every=8))
    cached_tokens(world, "a", PROMPT, num_outputs=14)  # states after 20 (prompt), 24 and 32 tokens; 35 are computed
    follow_up = [*PROMPT, *world.outcomes["a"].tokens, *text("next")]
    assert cached_tokens(world, "b", follow_up) == 32
    assert same_without_cache(world, "b", follow_up)


def test_a_state_that_has_read_a_token_too_many_is_not_kept() -> None:
    """The answer ends with a stop token while the next step is in flight, which has advanced the state."""
    first = World(Shape(page_size=1, cache=False, state_slots=1))
    first.generate("a", PROMPT, greedy(12, ignore_eos=True))
    answer = first.run()["a"].tokens
    stop = next(token for token in answer if answer.count(token) == 1 and answer.index(token) > 2)
    world = World(Shape(page_size=1, overlap=2, state_slots=8, save_every=1000))
    world.generate("a", PROMPT, greedy(40, ignore_eos=True, stop_token_ids=(stop,)))
    stopped = world.run()["a"].tokens
    assert len(stopped) < 12
    follow_up = [*PROMPT, *stopped, *text("next")]
    assert cached_tokens(world, "b", follow_up) == len(PROMPT) - 1
    assert same_without_cache(world, "b", follow_up)


def test_an_aborted_request_leaves_only_the_states_of_its_prompt() -> None:
    world = World(Shape(state_slots=8, chunk=8))
    world.generate("a", PROMPT, greedy(40, ignore_eos=True))
    for _ in range(8):
        world.step()
    world.send(AbortReq("a", "client"))
    world.run()
    assert states(world).uncached == 0
    assert cached_tokens(world, "b", PROMPT) == 20


def test_a_retracted_request_resumes_from_the_deepest_state_that_is_left() -> None:
    world = World(Shape(num_pages=20, state_slots=4, conservativeness=1e-6, num_rows=4))
    for rid in ("a", "b", "c"):
        world.generate(rid, text(rid * 18), greedy(24, ignore_eos=True))
    outcomes = world.run()
    retracted = [victim.rid for event in world.events for victim in event.victims]
    assert retracted
    assert {event.pool for event in world.events} == {"full"}
    assert all(same_without_cache(world, rid, text(rid * 18)) for rid in outcomes)


def test_checkpoints_are_evicted_least_recently_used_first() -> None:
    world = World(Shape(state_slots=3, save_every=1000, page_size=16))
    prompts = [text(letter * 22) for letter in "abc"]
    for number, prompt in enumerate(prompts):
        cached_tokens(world, f"first {number}", prompt, num_outputs=2)
    assert cached_tokens(world, "a again", prompts[0], num_outputs=2) == 0
    assert cached_tokens(world, "c again", prompts[2], num_outputs=2) == 16


def test_a_copy_of_a_running_request_is_dropped_for_a_new_request() -> None:
    world = World(Shape(state_slots=2, save_every=4, num_pages=64))
    world.generate("a", PROMPT, greedy(60, ignore_eos=True))
    for _ in range(20):
        world.step()
    assert states(world).available_pages == 0
    world.generate("b", text("another"), greedy(4, ignore_eos=True))
    world.step()
    assert [req.rid for req in world.scheduler.state.running] == ["a", "b"]
    world.run()
    assert same_without_cache(world, "a", PROMPT)


def test_turns_of_a_session_continue_from_the_states_of_the_prefix_cache() -> None:
    world = SessionWorld(Shape(sessions=True, state_slots=6, save_every=4))
    world.open("s")
    conversation: list[int] = []
    for index in range(20):
        prompt = f"and then number {index}? "
        outcome = world.say("s", f"t{index}", prompt)
        alone = World(Shape(num_pages=4096, cache=False, state_slots=1))
        alone.generate("r", conversation + text(prompt), greedy(8, ignore_eos=True))
        assert outcome.tokens == alone.run()["r"].tokens
        assert outcome.cached_tokens >= len(conversation) - 4 - world.shape.page_size
        conversation += text(prompt) + outcome.tokens
    assert (world.info("s").state, world.info("s").held_tokens) == ("cold", 0)
    world.close("s")
    assert states(world).uncached == 0


@noticed_by(Witness.LEDGER_AUDIT)
def test_the_audit_names_leaked_state_slots() -> None:
    world = World(Shape(state_slots=4))
    world.generate("a", PROMPT, greedy(9, ignore_eos=True))
    world.step()
    pool = states(world)
    (leaked,) = pool.allocator.take(1, world.scheduler.state.running[0])
    pool.uncached += 1
    pool.recount = lambda running: pool.uncached  # type: ignore[method-assign]
    with pytest.raises(InvariantViolation, match=rf"leaked slots .expected - free - tree - running.: .{leaked}."):
        world.scheduler.on_idle()


@pytest.mark.parametrize("kind", ["working", "checkpoint"])
def test_a_suspect_slot_is_never_used_again_and_its_request_recomputed(kind: str) -> None:
    world = World(Shape(state_slots=6, memory_check="quarantine"))
    cached_tokens(world, "first", PROMPT)
    world.generate("a", PROMPT, greedy(9, ignore_eos=True))
    world.step()
    pool = states(world)
    slot = pool.held["a"].pages[0] if kind == "working" else next(pages[0] for _, pages in pool.checkpoints.owners())
    pool.ledger.assign([slot], None)
    world.scheduler.on_idle()
    assert (slot in pool.quarantined, pool.capacity) == (True, 5)
    world.run()
    assert same_without_cache(world, "a", PROMPT)


def random_shape(seed: int, expected: World, window: int) -> Shape:
    """Pools that cause evictions, waiting and retractions. window: tokens of a window pool; 0 for none."""
    rng = random.Random(seed * 7919)
    size = expected.shape.page_size
    return Shape(
        num_pages=max(demand(expected), int(expected.peak_pages * rng.uniform(0.4, 1.0))),
        page_size=size,
        num_rows=rng.choice([4, 32]),
        chunk=rng.choice([1, 5, 16, 64]),
        policy=rng.choice(["fcfs", "lpm", "priority", "fair"]),
        overlap=rng.choice([1, 2]),
        cache=rng.random() < 0.9,
        retract_interval=rng.choice([0, 0, 13]),
        conservativeness=0.02,
        second=PoolInfo(max(60, 400 // size), size, SWA_POOL, window) if window else None,
        state_slots=rng.choice([1, 3, 8, 40]),
        save_every=rng.choice([1, 8, 64]),
    )


def compare(seed: int, window: int) -> int:
    """Run a load in an ample and in a small world. Returns the number of retractions in the small one."""
    size = (1, 4, 16, 4)[seed // 3 % 4]
    load = random_load(seed, aborts=seed % 4 == 0)
    second = PoolInfo(40_000 // size, size, SWA_POOL, window) if window else None
    expected = play(load, replace(ample(size), second=second, state_slots=400))
    seen = play(load, random_shape(seed, expected, window))
    assert_same(load, expected, seen)
    seen.pool.tree_cache.clear()
    assert all(pool.available_pages == pool.capacity for pool in seen.scheduler.state.kv_pools)
    return seen.scheduler.state.metrics.totals["num_retracted_requests_total"]


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 7])
def test_few_slots_give_the_tokens_of_many(window: int) -> None:
    num_retractions = sum(compare(seed, window) for seed in range(8))
    assert num_retractions > 0


@pytest.mark.soak
@pytest.mark.parametrize("window", [0, 18])
@pytest.mark.parametrize("first", range(1000, 2200, 100))
def test_few_slots_give_the_tokens_of_many_at_length(first: int, window: int) -> None:
    for seed in range(first, first + 100):
        compare(seed, window)
