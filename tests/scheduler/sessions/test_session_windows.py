"""Streaming sessions with two pools: a slot keeps the pages of its window, and evictions change no output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import SWA_POOL, FinishReq, PageMapReq, PoolInfo
from ebbtide.scheduler.memory.session_aware_cache import SessionAwareCache
from ebbtide.scheduler.memory.session_slot import SessionSlot
from ebbtide.scheduler.memory.sliding_window.window_pool import WindowPool

from ..mutations.witnesses import Witness, noticed_by
from ..session_world import SessionWorld
from ..world import Shape, World, greedy, text

WINDOW = 18  # tokens: 5 pages of 4 before the page that a token is written to
EIGHT = greedy(8, ignore_eos=True)


def swa(num_pages: int) -> PoolInfo:
    return PoolInfo(num_pages, 4, SWA_POOL, WINDOW)


def session_world(swa_pages: int = 64, **fields: object) -> SessionWorld:
    return SessionWorld(Shape(sessions=True, second=swa(swa_pages), **fields))  # type: ignore[arg-type]


def window_pool(world: World) -> WindowPool:
    pool = world.scheduler.state.kv_pools[1]
    assert isinstance(pool, WindowPool)
    return pool


def slot_of(world: World) -> SessionSlot:
    assert isinstance(world.pool.tree_cache, SessionAwareCache)
    (slot,) = world.pool.tree_cache.slots()
    return slot


def alone(prompt: list[int], num_tokens: int = 8) -> list[int]:
    world = World(Shape(num_pages=2000, second=swa(2000)))
    world.generate("r", prompt, greedy(num_tokens, ignore_eos=True))
    return world.run()["r"].tokens


def after_a_turn(**fields: object) -> tuple[SessionWorld, list[int]]:
    """A world with one session after one turn, and its conversation: 40 tokens, of which 39 have K/V."""
    world = session_world(**fields)  # type: ignore[arg-type]
    world.open("s")
    prompt = "a first turn, longer than a window"[:32]
    outcome = world.say("s", "first", prompt)
    return world, text(prompt) + outcome.tokens


@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("prompt", ["on", "and then, what came of it after all? "], ids=["short", "long"])
def test_every_turn_equals_the_whole_conversation_and_computes_only_its_new_tokens(
    cache: bool, overlap: int, prompt: str
) -> None:
    world = session_world(cache=cache, overlap=overlap, chunk=16)
    world.open("s")
    conversation: list[int] = []
    for index in range(6):
        outcome = world.say("s", f"t{index}", prompt)
        assert outcome.tokens == alone(conversation + text(prompt))
        assert len(conversation) - 4 <= outcome.cached_tokens <= len(conversation)
        conversation += text(prompt) + outcome.tokens
    world.close("s")
    world.pool.tree_cache.clear()
    for pool in world.scheduler.state.kv_pools:
        assert pool.available_pages == pool.capacity


def test_a_session_reports_its_tokens_in_each_pool() -> None:
    world, _ = after_a_turn()
    held = {pool.name: pool.accounting().session_held * 4 for pool in world.scheduler.state.kv_pools}
    info = world.info("s")
    assert info.held_in_pools == held
    assert (info.state, info.held_tokens) == ("warm", held["full"])
    assert 0 < held[SWA_POOL] <= 20
    gauges = world.scheduler.snapshot().gauges
    assert gauges["kv_session_held_tokens{pool=swa}"] == held[SWA_POOL]


def test_a_session_keeps_only_the_pages_of_its_window() -> None:
    world, _ = after_a_turn(cache=False)
    assert world.info("s").held_in_pools == {"full": 36, SWA_POOL: 20}


def test_an_aborted_turn_leaves_the_window_of_the_session_unchanged() -> None:
    """Before the turn is aborted, it computes more tokens than the window has."""
    world, conversation = after_a_turn()
    held = world.info("s").held_in_pools
    world.turn("s", "b", " what?", greedy(60, ignore_eos=True))
    for _ in range(45):
        world.step()
    assert len(world.outcomes["b"].tokens) > 2 * WINDOW
    world.abort("b")
    world.run()
    assert world.info("s").held_in_pools == held
    outcome = world.say("s", "c", " why?")
    assert outcome.tokens == alone(conversation + text(" why?"))
    assert outcome.cached_tokens == 36


def test_an_evicted_window_frees_the_whole_slot() -> None:
    world, conversation = after_a_turn(swa_pages=12, cache=False)
    world.generate("big", text("x" * 60), greedy(30, ignore_eos=True))
    world.run()
    assert world.info("s").held_in_pools == {"full": 0, SWA_POOL: 0}
    assert world.info("s").state == "cold"
    outcome = world.say("s", "b", " and on")
    assert outcome.tokens == alone(conversation + text(" and on"))


def test_an_evicted_page_of_the_first_pool_frees_the_window_as_well() -> None:
    world, conversation = after_a_turn(num_pages=24, cache=False)
    world.generate("big", text("x" * 57), greedy(8, ignore_eos=True))  # 16 pages, and 15 are free
    world.run()
    assert world.info("s").held_in_pools == {"full": 0, SWA_POOL: 0}
    assert world.say("s", "b", " and on").tokens == alone(conversation + text(" and on"))


@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
@pytest.mark.parametrize("overlap", [1, 2])
def test_a_turn_runs_alone_in_a_pool_of_its_window_and_one_page(cache: bool, overlap: int) -> None:
    """The committed window is evicted page by page while the window of the running turn moves on."""
    world, conversation = after_a_turn(swa_pages=6, cache=cache, overlap=overlap)
    for index in range(3):
        outcome = world.say("s", f"t{index}", " next, please", greedy(30, ignore_eos=True))
        assert outcome.tokens == alone(conversation + text(" next, please"), 30)
        conversation += text(" next, please") + outcome.tokens
    assert not world.events


def test_a_slot_shorter_than_the_window_continues_the_window_of_the_tree() -> None:
    world = session_world()
    world.open("s")
    first = world.say("s", "a", "x" * 28, greedy(2, ignore_eos=True))  # 7 pages of the prompt, none of the slot
    assert world.info("s").held_tokens == 0
    second = world.say("s", "b", "y" * 5, EIGHT)
    held = world.info("s").held_in_pools
    assert held[SWA_POOL] == held["full"] < WINDOW
    conversation = [*text("x" * 28), *first.tokens, *text("y" * 5), *second.tokens]
    outcome = world.say("s", "c", "z")
    assert outcome.tokens == alone([*conversation, *text("z")])
    assert outcome.cached_tokens >= len(conversation) - 4


def test_a_late_stop_string_that_loses_the_window_keeps_the_slot_of_the_turn_before() -> None:
    world, conversation = after_a_turn()
    held = world.info("s").held_in_pools
    world.turn("s", "b", "!", greedy(60, ignore_eos=True))
    while len(world.outcomes["b"].tokens if "b" in world.outcomes else ()) < 40:
        world.step()
    world.send(FinishReq("b", 20))  # 19 tokens too late: the window begins after token 61
    said = world.run()["b"].tokens[:20]
    assert world.info("s").num_tokens == len(conversation) + 21
    assert world.info("s").held_in_pools == held
    outcome = world.say("s", "c", " on")
    assert outcome.tokens == alone([*conversation, *text("!"), *said, *text(" on")])
    assert outcome.cached_tokens == 36


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("host_pages", [0, 64], ids=["recompute", "host tier"])
@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
def test_a_retracted_turn_gives_the_same_output(interval: int, host_pages: int, cache: bool) -> None:
    world = session_world(retract_interval=interval, host_pages=host_pages, cache=cache, max_retractions=-1)
    world.open("s")
    conversation: list[int] = []
    for index in range(3):
        world.generate(f"p{index}", text("plain"), greedy(12, ignore_eos=True))
        prompt = f"{index} how about now and then? "
        outcome = world.say("s", f"t{index}", prompt)
        assert outcome.tokens == alone(conversation + text(prompt))
        conversation += text(prompt) + outcome.tokens


def test_a_page_map_names_the_session_of_a_window_page() -> None:
    world, _ = after_a_turn()
    world.send(PageMapReq("map", SWA_POOL, 0, 64))
    world.receive()
    world.read()
    page_map = world.replies["map"].page_map
    assert page_map is not None
    held = [run for run in page_map.runs if run.kind == "session_held"]
    assert sum(run.num_pages for run in held) * 4 == world.info("s").held_in_pools[SWA_POOL]
    assert {run.holder for run in held} == {"s"}


@noticed_by(Witness.LEDGER_AUDIT)
def test_the_audit_names_the_slot_whose_window_lists_a_page_of_another_owner() -> None:
    world, _ = after_a_turn()
    pool = window_pool(world)
    span = next(owner for owner, _ in pool.spans.store.owners() if not owner.is_tree_node)
    pool.ledger.assign([page for _, pages in pool.spans.store.owners() for page in pages][-1:], None)
    with pytest.raises(InvariantViolation, match="the slot of session s"):
        world.scheduler.on_idle()
    assert span.tag.endswith("on the slot of session s#1")


def lose_a_page(pool: WindowPool, pages: list[int]) -> None:
    pages.pop()
    pool.spans.store.session_held_pages -= 1
    pool.spans.store.evictable_session_pages -= 1
    pool.allocator._free.pop()


def suspect_page(pool: WindowPool, pages: list[int]) -> None:
    pool.ledger.assign(pages[:1], None)


@pytest.mark.parametrize("when", ["idle", "running"])
@pytest.mark.parametrize("fault", [lose_a_page, suspect_page], ids=lambda fault: fault.__name__)
def test_a_slot_with_an_error_in_its_window_is_recomputed(
    when: str, fault: Callable[[WindowPool, list[int]], None]
) -> None:
    world, conversation = after_a_turn(memory_check="quarantine")
    pool = window_pool(world)
    world.turn("s", "b", " and on", greedy(12, ignore_eos=True))
    if when == "running":
        world.step()
        world.step()
    (pages,) = [pages for owner, pages in pool.spans.store.owners() if not owner.is_tree_node]
    assert isinstance(pages, list)
    fault(pool, pages)
    outcome = world.run()["b"]
    assert outcome.tokens == alone(conversation + text(" and on"), 12)
    assert world.scheduler.state.metrics.totals["kv_invariant_violations_total"] >= 1
    again = world.say("s", "c", " more")
    assert again.tokens == alone([*conversation, *text(" and on"), *outcome.tokens, *text(" more")])


@noticed_by(Witness.TREE)
def test_pages_missing_from_a_slot_are_detected() -> None:
    world, _ = after_a_turn()
    slot = slot_of(world)
    cache = world.pool.tree_cache
    assert isinstance(cache, SessionAwareCache)
    cache._slots.clear()
    cache._slots["t"] = other = SessionSlot("t", slot.first, slot.pages)
    cache._unpinned.clear()
    cache._unpinned[id(other)] = other
    world.allocator.ledger.assign(slot.pages, other)
    with pytest.raises(InvariantViolation, match="pool swa counts 1 pages of slots; slots have 0"):
        world.scheduler.on_idle()
