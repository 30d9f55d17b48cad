"""A second pool with its own page size: a shortage of it alone delays, retracts and aborts; its pages are audited."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from ebbtide.messages import PoolInfo
from ebbtide.paging import pages_for
from ebbtide.retract_policies import RETRACT_POLICIES
from ebbtide.scheduler.health.dump import waiting_reasons

from .loads import ample, assert_same, demand, play, random_load
from .mutations.witnesses import Witness, noticed_by
from .world import Shape, World, greedy, text

SIZE = 16  # tokens per page of the second pool
LONG = greedy(40, ignore_eos=True)


def second(num_pages: int, size: int = SIZE, window: int | None = None) -> PoolInfo:
    return PoolInfo(num_pages, size, "second", window)


def world(num_pages: int, shape: Shape | None = None) -> World:
    """A world with an ample first pool and ``num_pages`` pages in the second."""
    return World(replace(shape or Shape(conservativeness=0.02), second=second(num_pages)))


def test_a_shortage_of_the_second_pool_alone_retracts_and_names_its_sizes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    small = world(6)
    for rid in ("a", "b"):
        small.generate(rid, text(rid * 30), LONG)
    outcomes = small.run()
    assert [len(outcomes[rid].tokens) for rid in ("a", "b")] == [40, 40]
    event = small.events[0]
    (victim,) = event.victims
    assert (event.cause, event.pool) == ("memory", "second")
    assert (event.available_before, event.available_after) == (0, victim.freed_tokens)
    assert victim.freed_tokens == 48
    assert small.pool.evicted_pages == 0
    warnings = [record.message for record in caplog.records if record.message.startswith("Retract requests")]
    assert "48 tokens gained, available 0 -> 48 tokens of pool second, " in warnings[0]
    assert len(warnings) == len(small.events)


def test_a_prompt_that_finds_no_page_in_the_second_pool_is_retracted_with_its_sizes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two decode rows take their second pages, so the prompt's third chunk of 16 tokens finds no page."""
    small = world(6, Shape(conservativeness=0.02, chunk=16))
    for rid in ("a", "b"):
        small.generate(rid, text(rid * 14), greedy(19, ignore_eos=True))
    small.step()
    small.step()
    small.generate("prompt", text("c" * 40), greedy(2, ignore_eos=True))
    outcomes = small.run()
    assert [len(outcomes[rid].tokens) for rid in ("a", "b", "prompt")] == [19, 19, 2]
    (event,) = small.events
    assert [(victim.rid, victim.freed_tokens) for victim in event.victims] == [("prompt", 32)]
    assert (event.available_before, event.available_after) == (0, 32)
    assert "(0 outputs, 2 pages); 32 tokens gained, available 0 -> 32 tokens of pool second, " in caplog.text


def test_admission_waits_for_the_second_pool() -> None:
    small = world(5, Shape())
    small.generate("runs", text("x" * 30), LONG)
    small.step()
    small.generate("waits", text("y" * 30), LONG)
    small.step()
    assert [req.rid for req in small.scheduler.state.running] == ["runs"]
    (reason,) = waiting_reasons(small.scheduler.state)
    assert reason.startswith("waits: needs 8 of 248 and 2 of 3 usable pages")
    outcomes = small.run()
    assert small.events == []
    assert len(outcomes["waits"].tokens) == 40


def test_a_higher_priority_takes_pages_of_the_second_pool_from_lower_ones() -> None:
    small = world(4, Shape(policy="priority", conservativeness=0.02))
    small.generate("low", text("x" * 40), greedy(10, ignore_eos=True), priority=-3)
    for _ in range(3):
        small.step()
    small.generate("high", text("y" * 40), greedy(4, ignore_eos=True), priority=5)
    outcomes = small.run()
    assert (small.events[0].cause, small.events[0].victims[0].rid) == ("priority", "low")
    assert [len(outcomes[rid].tokens) for rid in ("low", "high")] == [10, 4]


def test_no_priority_preempts_requests_that_would_free_too_few_pages_of_the_second_pool() -> None:
    small = world(4, Shape(policy="priority", conservativeness=0.02))
    small.generate("equal", text("x" * 20), greedy(8, ignore_eos=True), priority=5)
    small.generate("low", text("z" * 8), greedy(4, ignore_eos=True), priority=-3)
    for _ in range(2):
        small.step()
    small.generate("high", text("y" * 40), greedy(4, ignore_eos=True), priority=5)
    outcomes = small.run()
    assert small.events == []
    assert [len(outcomes[rid].tokens) for rid in ("equal", "low", "high")] == [8, 4, 4]


def test_the_last_request_that_does_not_fit_the_second_pool_is_aborted() -> None:
    small = world(2)
    small.generate("a", text("x" * 20), LONG)
    outcome = small.run()["a"]
    (abort,) = outcome.aborts
    assert (abort.status, abort.code) == (500, "kv_cache_exhausted")
    assert "the whole pool holds only 32 tokens" in abort.message
    assert small.events[-1].aborted == "a"
    assert len(outcome.tokens) == 2 * SIZE + 1 - 20


def test_a_prompt_that_never_fits_the_second_pool_is_refused() -> None:
    small = world(2)
    small.generate("a", text("x" * 33), LONG)
    (abort,) = small.run()["a"].aborts
    assert (abort.status, abort.code) == (400, "context_length_exceeded")


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 1, 7, 40])
@pytest.mark.parametrize("seed", range(8))
def test_a_small_second_pool_gives_the_tokens_of_an_ample_one(seed: int, window: int | None) -> None:
    rng = random.Random(f"{seed} {window}")
    load = random_load(seed, aborts=seed % 4 == 0)
    expected = play(load, replace(ample(4), second=second(3000, 16, window)))
    size = rng.choice([1, 3, 16, 50])
    largest = max(
        expected.prompts[rid.split(".")[0]] + max(len(outcome.tokens), 2) - 1
        for rid, outcome in expected.outcomes.items()
    )
    shape = Shape(
        num_pages=rng.choice([2000, demand(expected) + 10]),
        num_rows=rng.choice([4, 32]),
        chunk=rng.choice([1, 5, 16, 64]),
        policy=rng.choice(["fcfs", "lpm", "priority"]),
        overlap=rng.choice([1, 2]),
        max_retractions=(3, 1, 0)[seed % 3],
        retract_policy=rng.choice(list(RETRACT_POLICIES)),
        conservativeness=rng.choice([0.02, 0.5]),
        host_pages=rng.choice([0, 50]),
        max_samples=rng.choice([1, 1, 3]),
        second=second(max(expected.second.pages_for(largest) * 16 // size + 2, pages_for(largest, size)), size, window),
    )
    seen = play(load, shape)
    assert_same(load, expected, seen)
    assert seen.second.available_pages == seen.second.capacity
    events = [victim.rid for event in seen.events for victim in event.victims]
    assert len(events) == seen.scheduler.state.metrics.totals["num_retracted_requests_total"]


@pytest.mark.slow
@pytest.mark.parametrize(("window", "num_pages"), [(None, 30), (20, 12)])
def test_a_small_second_pool_retracts_on_random_loads(window: int | None, num_pages: int) -> None:
    shape = replace(ample(4), num_rows=32, chunk=16, conservativeness=1e-6, second=second(num_pages, SIZE, window))
    retracted = 0
    for seed in range(12):
        seen = play(random_load(seed), shape)
        retracted += seen.scheduler.state.metrics.totals["num_retracted_requests_total"]
        assert all(event.pool == "second" for event in seen.events)
    assert retracted > 10


def test_pages_behind_the_window_leave_while_the_request_runs() -> None:
    """A window of 20 tokens begins in one of at most three pages of 16 tokens."""
    windowed = World(Shape(second=second(3, SIZE, 20)))
    windowed.generate("a", text("x" * 100), LONG)
    held = []
    for _ in range(30):
        windowed.step()
        held.append(windowed.second.num_held)
    assert max(held) == 3
    assert len(windowed.run()["a"].tokens) == 40


@noticed_by(Witness.LEDGER_AUDIT)
def test_requests_with_a_suspect_page_in_the_second_pool_are_recomputed() -> None:
    small = world(8, Shape(memory_check="quarantine"))
    for rid in ("a", "b", "c"):
        small.generate(rid, text(rid * 20), greedy(9, ignore_eos=True))
    for _ in range(3):
        small.step()
    small.second.held["a"].pages[0] = small.second.held["b"].pages[0]
    small.scheduler.on_idle()
    assert [req.rid for req in small.scheduler.state.running] == ["c"]
    outcomes = small.run()
    assert [len(outcomes[rid].tokens) for rid in ("a", "b", "c")] == [9, 9, 9]
    assert small.scheduler.state.metrics.totals["kv_invariant_violations_total"] == 1
    assert small.second.available_pages == small.second.capacity


@noticed_by(Witness.EQUATION)
def test_protected_requests_requeued_after_a_quarantine_in_the_second_pool_are_not_counted_as_retracted() -> None:
    small = world(8, Shape(memory_check="quarantine", max_retractions=0))
    for rid in ("a", "b"):
        small.generate(rid, text(rid * 20), greedy(40, ignore_eos=True))
    for _ in range(3):
        small.step()
    assert len(small.scheduler.state.running) == 2
    small.second.allocator._free.pop()
    small.step()
    assert [req.rid for req in small.scheduler.state.running] == ["a"]
    outcomes = small.run()
    assert [len(outcomes[rid].tokens) for rid in ("a", "b")] == [40, 40]
    assert small.scheduler.state.metrics.totals["num_retracted_requests_total"] == 0


def test_the_fullest_pool_is_the_token_usage() -> None:
    small = world(8, Shape())
    small.generate("a", text("a" * 20), LONG)
    small.step()
    gauges = small.scheduler.snapshot().gauges
    assert gauges["kv_pool_usage{pool=full}"] < gauges["kv_pool_usage{pool=second}"] == 2 / 8 == gauges["token_usage"]
    assert gauges["kv_available_tokens{pool=second}"] == 6 * SIZE
