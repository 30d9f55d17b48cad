"""Flush, pause and continue, as the scheduler carries them out."""

from __future__ import annotations

import pytest

from ebbtide.messages import AbortReq, ControlReq, OpenSessionReq, SessionTurn
from ebbtide.scheduler.kv_events.block_events import AllBlocksCleared, BlockRecorder

from .world import Shape, World, greedy, text

PROMPT = text("a prompt that fills several pages of a small size, twice")


def replied(world: World, call: str) -> int | None:
    return world.replies[call].status if call in world.replies else None


def turns(world: World, count: int) -> None:
    for _ in range(count):
        world.step()
        world.read()


def test_an_idle_cache_is_emptied_and_subscribers_are_notified() -> None:
    recorder = BlockRecorder(16)
    world = World(Shape(page_size=16), observer=recorder)
    world.generate("a", PROMPT, greedy(4))
    world.run()
    assert world.pool.accounting().evictable > 0
    recorder.drain()
    world.send(ControlReq("f", "flush"))
    turns(world, 1)
    assert replied(world, "f") == 200
    accounting = world.pool.accounting()
    assert accounting.available == accounting.total
    assert recorder.drain() == [AllBlocksCleared()]
    world.scheduler.on_idle()
    world.generate("b", PROMPT, greedy(4))
    outcomes = world.run()
    assert outcomes["b"].cached_tokens == 0
    assert outcomes["b"].tokens == outcomes["a"].tokens


def test_without_a_prefix_cache_there_is_nothing_to_flush() -> None:
    world = World(Shape(cache=False))
    world.send(ControlReq("f", "flush"))
    turns(world, 1)
    assert replied(world, "f") == 200


def test_the_kv_of_an_idle_session_goes_and_its_tokens_stay() -> None:
    world = World(Shape(sessions=True))
    world.send(OpenSessionReq("open", "s", streaming=True))
    world.generate("one", PROMPT, greedy(6, ignore_eos=True), session=SessionTurn("s"))
    world.run()
    assert world.pool.accounting().session_held > 0
    world.send(ControlReq("f", "flush"))
    turns(world, 1)
    assert replied(world, "f") == 200
    assert world.pool.accounting().available == world.pool.accounting().total
    world.generate("two", text(" and more"), greedy(6), session=SessionTurn("s"))
    outcomes = world.run()
    assert (outcomes["two"].cached_tokens, outcomes["two"].prompt_tokens) == (0, len(PROMPT) + 6 + len(" and more"))


@pytest.mark.parametrize("rows", [1, 2])
def test_while_requests_run_or_wait_nothing_is_flushed(rows: int) -> None:
    world = World(Shape(num_rows=1))
    for index in range(rows):
        world.generate(f"r{index}", PROMPT, greedy(30, ignore_eos=True))
    turns(world, 3)
    world.send(ControlReq("f", "flush"))
    turns(world, 1)
    assert (replied(world, "f"), world.replies["f"].code) == (400, "busy")
    assert all(outcome.finish == "length" for outcome in world.run().values())


def test_a_request_that_waits_after_a_retraction_keeps_the_cache() -> None:
    world = World(Shape(num_pages=16, page_size=4, max_retractions=-1, conservativeness=0.01))
    for rid in "ab":
        world.generate(rid, text(f"{rid} prompt of its own....."), greedy(30, ignore_eos=True))
    while not world.scheduler.state.num_retracted:
        world.step()
    (running,) = world.scheduler.state.running
    world.send(AbortReq(running.rid, "client"), ControlReq("f", "flush"))
    world.receive()
    world.read()
    assert replied(world, "f") == 400
    outcomes = world.run()
    assert sorted(outcomes[rid].finish or "" for rid in "ab") == ["abort", "length"]


def test_flushes_that_may_wait_all_happen_when_the_last_request_has_ended() -> None:
    world = World(Shape())
    world.generate("a", PROMPT, greedy(12, ignore_eos=True))
    turns(world, 2)
    world.send(ControlReq("one", "flush", 1000.0), ControlReq("two", "flush", 1000.0), ControlReq("late", "flush", 3.0))
    turns(world, 1)
    assert world.replies == {}
    turns(world, 5)
    assert [replied(world, call) for call in ("one", "two", "late")] == [None, None, 400]
    world.run()
    turns(world, 1)
    assert [replied(world, call) for call in ("one", "two")] == [200, 200]
    assert world.scheduler.idle_changes[:2] == (0, 1)


def test_no_step_runs_during_a_pause_and_outputs_are_unchanged() -> None:
    whole = World(Shape())
    whole.generate("a", PROMPT, greedy(20, ignore_eos=True))
    expected = whole.run()["a"]
    world = World(Shape(overlap=2))
    world.generate("a", PROMPT, greedy(20, ignore_eos=True))
    turns(world, 4)
    world.send(ControlReq("p", "pause"), ControlReq("p again", "pause"))
    turns(world, 3)
    assert replied(world, "p") == replied(world, "p again") == 200
    done = len(world.outcomes["a"].tokens)
    assert 0 < done < 20
    world.generate("b", PROMPT, greedy(5))
    turns(world, 5)
    assert len(world.outcomes["a"].tokens) == done
    assert "b" not in world.outcomes
    assert world.scheduler.num_in_flight == 0
    assert not world.scheduler.idle
    assert world.scheduler.paused
    world.send(ControlReq("c", "continue"), ControlReq("c again", "continue"))
    outcomes = world.run()
    assert replied(world, "c") == replied(world, "c again") == 200
    assert outcomes["a"].tokens == expected.tokens
    assert outcomes["a"].pressure is None, "a pause is no retraction"
    assert outcomes["b"].finish in ("stop", "length")


def test_disconnects_and_timeouts_apply_during_a_pause() -> None:
    world = World(Shape())
    world.generate("a", PROMPT, greedy(20, ignore_eos=True))
    world.generate("b", PROMPT, greedy(20, ignore_eos=True), timeout_s=10)
    turns(world, 3)
    world.send(ControlReq("p", "pause"), AbortReq("a", "client"))
    turns(world, 2)
    assert world.outcomes["a"].finish == "abort"
    world.steps = 50
    turns(world, 1)
    assert [abort.code for abort in world.outcomes["b"].aborts] == ["timeout"]
    assert world.scheduler.idle
    accounting = world.pool.accounting()
    assert accounting.available + accounting.evictable == accounting.total
