"""The phases of requests, as the scheduler reports them for traces."""

from __future__ import annotations

from ebbtide.messages import AbortReq
from ebbtide.scheduler.phase_recorder import PhaseRecorder

from ..scheduler.world import Shape, World, greedy


def recorded(shape: Shape) -> World:
    """A world that records phases."""
    world = World(shape)
    world.scheduler.state.metrics.phases = PhaseRecorder(world.scheduler.state.outbox)
    return world


def run(world: World) -> None:
    """Run until all requests have ended and their ends have a time."""
    world.run()
    world.read()


def phases_of(world: World, rid: str) -> list[str]:
    return [change.phase for change in world.phases if change.rid == rid]


def test_nothing_is_recorded_by_default() -> None:
    world = World()
    world.generate("a", [1] * 10, greedy(3))
    run(world)
    assert world.phases == []


def test_a_request_has_a_prefill_a_decode_and_an_end_with_their_times() -> None:
    world = recorded(Shape(chunk=8))
    world.generate("a", [1] * 20, greedy(3))
    run(world)
    assert [(change.phase, change.time_s) for change in world.phases] == [("prefill", 0), ("decode", 3), ("end", 5)]
    assert (world.phases[0].tokens_to_compute, world.phases[0].cached_tokens) == (20, 0)


def test_a_request_of_one_token_has_every_phase() -> None:
    world = recorded(Shape())
    world.generate("a", [1] * 4, greedy(1))
    run(world)
    assert phases_of(world, "a") == ["prefill", "decode", "end"]


def test_cached_tokens_are_not_computed() -> None:
    world = recorded(Shape(page_size=4))
    for rid in ("a", "b"):
        world.generate(rid, list(range(1, 18)), greedy(1))
        run(world)
    again = next(change for change in world.phases if change.rid == "b")
    assert (again.cached_tokens, again.tokens_to_compute) == (16, 1)


def test_a_retraction_returns_to_the_queue_and_costs_a_prefill() -> None:
    world = recorded(Shape(retract_interval=5, max_retractions=1, cache=False))
    world.generate("a", [1] * 10, greedy(12))
    run(world)
    outcome = world.outcomes["a"]
    assert phases_of(world, "a") == ["prefill", "decode", "queue", "prefill", "decode", "end"]
    assert outcome.pressure is not None
    again = [change for change in world.phases if change.phase == "prefill"][1]
    assert again.tokens_to_compute == outcome.pressure.recomputed_tokens + 1
    times = [change.time_s for change in world.phases]
    assert times == sorted(times)


def test_restored_tokens_are_not_computed() -> None:
    world = recorded(Shape(retract_interval=5, max_retractions=1, cache=False, host_pages=64))
    world.generate("a", [1] * 10, greedy(12))
    run(world)
    first, again = [change for change in world.phases if change.phase == "prefill"]
    assert (first.restored_tokens, first.tokens_to_compute) == (0, 10)
    assert again.restored_tokens > 0
    assert again.tokens_to_compute == 1


def test_a_request_that_is_aborted_while_it_waits_has_only_an_end() -> None:
    world = recorded(Shape(num_rows=1))
    for rid in ("a", "b"):
        world.generate(rid, [1] * 4, greedy(6))
    world.step()
    world.send(AbortReq("b", "client"))
    run(world)
    assert phases_of(world, "b") == ["end"]
    assert phases_of(world, "a") == ["prefill", "decode", "end"]
