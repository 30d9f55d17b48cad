"""The operator's view of requests, sessions and pages, and the times at which retracted requests were resumed."""

from __future__ import annotations

from collections import Counter

import pytest

from ebbtide.messages import (
    AbortReq,
    Inspection,
    InspectReq,
    OpenSessionReq,
    PageMap,
    PageMapReq,
    Resumption,
    SessionTurn,
)
from ebbtide.scheduler.health.inspection import MAX_PAGES
from ebbtide.scheduler.memory.session_slot import SessionSlot

from ..loads import Arrival, random_load
from ..world import Shape, World, greedy, text

PRESSED = Shape(num_pages=24, page_size=8, chunk=4, conservativeness=0.02)


def inspected(world: World, limit: int = 100) -> Inspection:
    world.send(InspectReq("i", limit, limit))
    world.receive()
    world.read()
    shown = world.replies.pop("i").inspection
    assert shown is not None
    return shown


def page_map(world: World, pool: str = "full", first: int = 0, count: int = MAX_PAGES) -> PageMap:
    world.send(PageMapReq("m", pool, first, count))
    world.receive()
    world.read()
    shown = world.replies.pop("m").page_map
    assert shown is not None
    return shown


def send(world: World, arrivals: list[Arrival]) -> None:
    for arrival in arrivals:
        world.generate(arrival.rid, arrival.prompt, arrival.sampling)


@pytest.mark.parametrize("seed", range(2))
def test_the_map_adds_up_to_the_accounting_of_each_pool_after_every_step(seed: int) -> None:
    world = World(Shape(num_pages=24, page_size=8, chunk=4, conservativeness=0.02, host_pages=16, sessions=True))
    world.send(OpenSessionReq("open", "chat", streaming=True))
    world.generate("turn", text("a first turn of a session"), greedy(9, ignore_eos=True), session=SessionTurn("chat"))
    world.run()
    send(world, random_load(seed, 8))
    kinds: set[str] = set()
    while world.inbox or not world.scheduler.idle:
        world.step()
        for pool in world.scheduler.state.pools:
            counted: Counter[str] = Counter()
            for run in page_map(world, pool.name).runs:
                counted[run.kind] += run.num_pages
            accounting = pool.accounting()
            assert counted.total() == accounting.total
            assert {name: getattr(accounting, name) for name in counted} == counted, pool.name
            kinds |= counted.keys()
    assert kinds >= {"available", "evictable", "protected", "uncached", "session_held"}


def test_the_map_names_only_requests_and_sessions() -> None:
    world = World(Shape(sessions=True))
    world.send(OpenSessionReq("open", "chat", streaming=True))
    world.generate("turn", text("a first turn"), greedy(9, ignore_eos=True), session=SessionTurn("chat"))
    world.run()
    world.generate("r", text("the prompt of a request, with several pages"), greedy(50, ignore_eos=True))
    world.step()
    world.step()
    holders = {(run.kind, run.holder) for run in page_map(world).runs}
    assert {("session_held", "chat"), ("uncached", "r"), ("available", "")} <= holders
    assert {holder for kind, holder in holders if kind not in ("session_held", "uncached")} == {""}


def test_quarantined_pages_are_shown_as_such() -> None:
    world = World(Shape(memory_check="quarantine"))
    nobody = SessionSlot("nobody#1")  # an owner that no list names
    world.allocator.ledger.assign([3], nobody)
    world.scheduler.on_idle()
    assert [run.kind for run in page_map(world).runs if run.num_pages == 1] == ["quarantined"]


def test_the_map_is_answered_in_parts_of_bounded_size() -> None:
    world = World(Shape(num_pages=MAX_PAGES + 10))
    whole = page_map(world, count=10**9)
    assert (whole.total_pages, sum(run.num_pages for run in whole.runs)) == (MAX_PAGES + 10, MAX_PAGES)
    assert sum(run.num_pages for run in page_map(world, first=MAX_PAGES).runs) == 10
    for first in (MAX_PAGES + 10, 10**12):
        assert page_map(world, first=first).runs == []


def test_an_unknown_pool_is_refused() -> None:
    world = World()
    world.send(PageMapReq("m", "swa", 0, 10))
    world.step()
    world.read()
    reply = world.replies["m"]
    assert (reply.status, reply.code, reply.page_map) == (404, "pool_not_found", None)
    assert "full" in reply.message


def test_requests_are_shown_with_their_sizes_and_states() -> None:
    world = World(Shape(num_rows=1))
    world.generate("a", text("a prompt"), greedy(20, ignore_eos=True))
    world.generate("b", text("another prompt"), greedy(7))
    for _ in range(5):
        world.step()
    shown = inspected(world)
    [running], [waiting] = shown.running, shown.waiting
    assert (running.rid, running.state, running.prompt_tokens, running.max_tokens) == ("a", "running", 8, 20)
    assert running.output_tokens == len(world.outcomes["a"].tokens) > 0
    assert running.num_pages == len(world.scheduler.state.running[0].pages) > 0
    assert running.age_s == world.now
    assert (waiting.rid, waiting.state, waiting.num_pages, waiting.num_retractions) == ("b", "waiting", 0, 0)
    assert inspected(world, 0) == Inspection([], [], [], 0)
    world.run()
    assert inspected(world) == Inspection([], [], [], 0)


def test_the_sessions_opened_last_are_shown_with_their_owners() -> None:
    world = World(Shape(sessions=True))
    for number in range(5):
        world.send(OpenSessionReq(f"o{number}", f"s{number}", owner="team", streaming=True))
    shown = inspected(world, 2)
    assert [(session.session_id, session.owner) for session in shown.sessions] == [("s4", "team"), ("s3", "team")]
    assert shown.num_sessions == 5


@pytest.mark.parametrize("seed", range(3))
def test_every_retraction_is_followed_by_one_resumption(seed: int) -> None:
    world = World(PRESSED)
    send(world, random_load(seed, 10))
    resumptions: list[Resumption] = []
    seen_retracted = False
    while world.inbox or not world.scheduler.idle:
        world.step()
        seen_retracted = seen_retracted or any(req.state == "retracted" for req in inspected(world).waiting)
        resumptions += world.scheduler.snapshot().resumptions
    victims = [victim.rid for event in world.events for victim in event.victims]
    assert Counter(victims) == Counter(resumption.rid for resumption in resumptions)
    assert all(resumption.waited_s >= 0 for resumption in resumptions)
    assert bool(victims) == seen_retracted
    assert world.scheduler.snapshot().resumptions == []


def test_a_request_that_ends_while_it_is_retracted_does_not_resume() -> None:
    world = World(Shape(num_pages=40, page_size=4, conservativeness=0.02, num_rows=4))
    for rid in "abc":
        world.generate(rid, text("12 tokens in"), greedy(140, ignore_eos=True))
    while not world.events:
        world.step()
        world.read()
    victim = world.events[0].victims[0].rid
    retracted_at = world.now
    world.send(AbortReq(victim, "client"))
    world.step()
    [resumption] = [entry for entry in world.scheduler.snapshot().resumptions if entry.rid == victim]
    assert resumption.outcome == "client"
    assert 0 <= resumption.waited_s <= world.now - retracted_at + 1
