"""Seeded accounting bugs in quarantine mode: serving continues, and bugs that are detected in time change no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ebbtide.messages import AbortReq
from ebbtide.plan import PlanItem
from ebbtide.scheduler.request import Request
from ebbtide.tokenization.vocabulary import SIM_EOS

from ..loads import Arrival, assert_same, play
from ..make import request
from ..mutations import accounting_bugs as bugs
from ..mutations.test_mutations import expectations
from ..mutations.witnesses import Witness, noticed_by
from ..world import Shape, World, greedy, text

Patch = pytest.MonkeyPatch
VIOLATIONS = "kv_invariant_violations_total"

# A step may be computed before these bugs are found, so a request may have read pages of another owner.
CAUGHT_SOMEHOW = [
    bugs.skip_lock,
    bugs.lock_only_the_leaf,
    bugs.unlocked_twice,
    bugs.evict_locked_pages,
    bugs.split_off_by_one,
    bugs.own_copies_freed_and_still_used,
]
CAUGHT_BEFORE_THE_FORWARD = [bug for bug in bugs.ACCOUNTING if bug not in CAUGHT_SOMEHOW]


def play_with(bug: Callable[[Patch], None], load: list[Arrival], shape: Shape) -> World:
    """Run a load with a bug that is removed when it is detected, to simulate a rare bug."""
    with pytest.MonkeyPatch.context() as patch:
        check = World.dispatch

        def dispatch(self: World) -> bool:
            done = check(self)
            if self.scheduler.state.metrics.totals[VIOLATIONS]:
                patch.undo()
            return done

        bug(patch)
        patch.setattr(World, "dispatch", dispatch)
        return play(load, replace(shape, memory_check="quarantine"))


def roomy(shape: Shape) -> Shape:
    """A shape with spare pages in which requests are retracted often and their K/V goes to the host."""
    return replace(shape, num_pages=shape.num_pages + 40, retract_interval=6, host_pages=64)


@pytest.mark.slow
@pytest.mark.parametrize("bug", CAUGHT_BEFORE_THE_FORWARD, ids=lambda bug: bug.__name__)
def test_bugs_found_by_the_accounting_change_no_answer(bug: Callable[[Patch], None]) -> None:
    caught = 0
    for load, expected, shape in expectations()[::3]:
        world = play_with(bug, load, roomy(shape))
        caught += world.scheduler.state.metrics.totals[VIOLATIONS]
        assert_same(load, expected, world)
    assert caught


@pytest.mark.slow
@pytest.mark.parametrize("bug", CAUGHT_SOMEHOW, ids=lambda bug: bug.__name__)
def test_every_request_ends_once_and_serving_continues_with_any_bug(bug: Callable[[Patch], None]) -> None:
    for load, _, shape in expectations()[::3]:
        world = play_with(bug, load, roomy(shape))
        assert {rid for arrival in load for rid in arrival.rids} == set(world.outcomes)
        assert all(outcome.ends == 1 for outcome in world.outcomes.values())
        world.generate("probe", text("probe"), greedy(4, ignore_eos=True))
        assert len(world.run()["probe"].tokens) == 4


@pytest.fixture
def busy() -> World:
    """Three decoding requests and one prompt in the tree, in quarantine mode."""
    world = World(Shape(num_pages=40, memory_check="quarantine"))
    world.generate("old", text("x" * 20), greedy(1))
    world.run()
    for rid in "abc":
        world.generate(rid, text(f"{rid} " + "y" * 9), greedy(30, ignore_eos=True))
    for _ in range(4):
        world.step()
    return world


def alone(rid: str) -> list[int]:
    world = World(Shape(num_pages=400, cache=False))
    world.generate(rid, text(f"{rid} " + "y" * 9), greedy(30, ignore_eos=True))
    return world.run()[rid].tokens


def running(world: World, rid: str) -> Request:
    return next(req for req in world.scheduler.state.running if req.rid == rid)


def finish(world: World) -> None:
    """Run until idle. Every answer must be correct."""
    outcomes = world.run()
    assert {rid: outcomes[rid].tokens for rid in "abc"} == {rid: alone(rid) for rid in "abc"}


@noticed_by(Witness.PLAN_AUDIT)
def test_only_requests_on_a_page_with_an_error_are_recomputed(busy: World) -> None:
    page = running(busy, "b").pages[-1]
    busy.allocator.ledger.assign([page], request("somebody"))
    busy.step()
    state = busy.scheduler.state
    assert state.pool.quarantined == {page}
    assert [req.rid for req in state.running if req.computed > 0] >= ["a", "c"]
    assert state.metrics.totals[VIOLATIONS] == 1
    assert busy.scheduler.snapshot().gauges["kv_quarantined_tokens{pool=full}"] == 4
    assert state.metrics.totals["num_retracted_requests_total"] == 0
    finish(busy)
    assert state.pool.capacity == 39


@noticed_by(Witness.PLAN_AUDIT)
def test_no_request_computes_on_a_page_with_two_owners(busy: World) -> None:
    first, second = running(busy, "a"), running(busy, "b")
    second.pages[-1] = first.pages[-1]
    finish(busy)
    assert busy.scheduler.state.metrics.totals[VIOLATIONS] >= 1


@noticed_by(Witness.PLAN_AUDIT)
def test_a_page_freed_under_a_running_request_is_found_in_the_next_plan(busy: World) -> None:
    busy.allocator.give(running(busy, "a").pages[-1:], running(busy, "a"))
    finish(busy)


@noticed_by(Witness.SWEEP)
def test_a_tree_node_with_an_error_is_removed_with_its_subtree(busy: World) -> None:
    node = next(busy.pool.tree_cache.walk())  # type: ignore[attr-defined]
    busy.allocator.ledger.assign(node.pages[:1], request("somebody"))
    for _ in range(70):
        busy.step()
    assert node not in list(busy.pool.tree_cache.walk())  # type: ignore[attr-defined]
    finish(busy)


@noticed_by(Witness.EQUATION)
def test_a_wrong_counter_alone_quarantines_no_page(busy: World) -> None:
    busy.pool.uncached += 3
    finish(busy)
    assert busy.scheduler.state.pool.quarantined == set()


@noticed_by(Witness.EQUATION)
def test_a_lost_page_is_quarantined_and_serving_continues(busy: World) -> None:
    lost = busy.allocator._free.pop()
    finish(busy)
    assert busy.scheduler.state.pool.quarantined == {lost}


@noticed_by(Witness.PLAN_AUDIT)
def test_a_violation_during_a_finish_emits_the_last_token_once(busy: World) -> None:
    """An error in the free list is found during a finish: the last token is sampled again and is the same."""
    world = World(Shape(num_pages=40, memory_check="quarantine"))
    world.generate("a", text("a " + "y" * 9), greedy(5, ignore_eos=True))
    world.generate("b", text("b " + "y" * 9), greedy(30, ignore_eos=True))
    while len(world.outcomes.get("a", busy.outcomes["old"]).tokens) < 4:
        world.step()
    req = running(world, "a")
    world.allocator.ledger.assign(req.pages[-1:], request("somebody"))
    outcomes = world.run()
    assert outcomes["a"].tokens == alone("a")[:5]
    assert outcomes["b"].tokens == alone("b")


@noticed_by(Witness.LEDGER_MOVE)
def test_a_violation_on_abort_still_aborts(busy: World) -> None:
    busy.allocator.ledger.assign(running(busy, "b").pages[-1:], request("somebody"))
    busy.send(AbortReq("b", "client"))
    outcomes = busy.run()
    assert (outcomes["b"].finish, outcomes["b"].ends) == ("abort", 1)
    assert outcomes["a"].tokens == alone("a")


@noticed_by(Witness.SWEEP)
def test_results_in_flight_of_released_requests_are_dropped() -> None:
    world = World(Shape(num_pages=40, memory_check="quarantine", overlap=2))
    for rid in "abc":
        world.generate(rid, text(f"{rid} " + "y" * 9), greedy(30, ignore_eos=True))
    for _ in range(5):
        world.step()
    assert world.scheduler.num_in_flight
    world.allocator.ledger.assign(running(world, "b").pages[-1:], request("somebody"))
    finish(world)


@noticed_by(Witness.EQUATION)
def test_protected_requests_that_do_not_fit_after_a_quarantine_are_requeued_but_not_counted_as_retracted() -> None:
    shape = Shape(num_pages=20, memory_check="quarantine", max_retractions=0)
    world = World(shape)
    for rid, length in (("a", 30), ("b", 30)):
        world.generate(rid, text(f"{rid} " + "y" * 9), greedy(length, ignore_eos=True))
    for _ in range(4):
        world.step()
    assert len(world.scheduler.state.running) == 2
    world.allocator._free.pop()
    world.step()
    assert [req.rid for req in world.scheduler.state.running] == ["a"]
    outcomes = world.run()
    assert {rid: outcomes[rid].tokens for rid in "ab"} == {rid: alone(rid) for rid in "ab"}
    assert world.scheduler.state.metrics.totals["num_retracted_requests_total"] == 0


@noticed_by(Witness.PLAN_AUDIT)
def test_a_plan_without_items_still_copies_pages(monkeypatch: Patch) -> None:
    """The step that saves a retracted request's K/V has one item, and that item's page has an error."""
    shape = Shape(num_pages=40, host_pages=64, retract_interval=8, max_retractions=1, memory_check="quarantine")
    world = World(shape)
    for rid in "ab":
        world.generate(rid, text(f"{rid} " + "y" * 9), greedy(30, ignore_eos=True))
    checker = world.scheduler.checker
    hit: list[str] = []
    audit = checker.audit_plan

    def corrupted(items: list[PlanItem], requests: list[Request]) -> None:
        if world.scheduler.state.output.events and len(requests) == 1 and not hit:
            hit.append(requests[0].rid)
            world.allocator.ledger.assign(requests[0].pages[-1:], request("somebody"))
        audit(items, requests)

    monkeypatch.setattr(checker, "audit_plan", corrupted)
    outcomes = world.run()
    assert hit
    assert world.scheduler.state.metrics.totals["kv_restored_tokens_total"] > 0
    assert {rid: outcomes[rid].tokens for rid in "ab"} == {rid: alone(rid) for rid in "ab"}


def test_memory_check_off_checks_nothing() -> None:
    world = World(Shape(memory_check="off"))
    world.pool.uncached += 3
    world.generate("a", text("hello"), greedy(5))
    assert world.run()["a"].finish == "length"
    assert SIM_EOS not in world.outcomes["a"].tokens


@noticed_by(Witness.PLAN_AUDIT)
def test_one_invalid_item_of_a_plan_does_not_hide_another(busy: World) -> None:
    """Two requests write to pages that the tree owns now. Lists and ledger agree, but neither may be computed."""
    for rid in "ab":
        req = running(busy, rid)
        busy.pool.publish(req, len(req.pages) * req.page_size)
    published = {page for rid in "ab" for page in running(busy, rid).pages[-1:]}
    plan = busy.scheduler.next_step(100.0)
    assert plan is not None
    assert [item.row for item in plan.items] == [running(busy, "c").row]
    assert busy.scheduler.state.pool.quarantined == published
    busy.runner.submit(plan)
    busy.collect()
    finish(busy)


@noticed_by(Witness.RESTORE)
def test_a_lost_page_of_the_host_tier_invalidates_only_its_copy() -> None:
    shape = Shape(num_pages=40, host_pages=64, retract_interval=8, max_retractions=2, memory_check="quarantine")
    world = World(shape)
    for rid in "abc":
        world.generate(rid, text(f"{rid} " + "y" * 9), greedy(30, ignore_eos=True))
    tier = world.scheduler.state.host_tier
    assert tier is not None
    while not tier.pools[0].copies():
        world.step()
    lost = tier.pools[0].copies()[0].pages.pop()
    finish(world)
    assert tier.pools[0].quarantined == {lost}
    assert tier.pools[0].accounting().total == tier.pools[0].accounting().available == 63
    assert world.scheduler.state.metrics.totals[VIOLATIONS] == 1
    assert world.scheduler.snapshot().gauges["kv_quarantined_tokens{pool=host}"] == 4


def test_the_log_names_the_quarantined_pages_and_their_pool(busy: World, caplog: pytest.LogCaptureFixture) -> None:
    lost = busy.allocator._free.pop()
    busy.step()
    assert f"page {lost} is listed by no owner, but the ledger records the free list" in caplog.text
    assert f"Quarantined pages: full [{lost}]" in caplog.text


@noticed_by(Witness.EQUATION)
def test_a_request_whose_list_lost_a_page_is_recomputed(busy: World) -> None:
    """The page has no owner, so it is quarantined. The request would read another page in its place."""
    req = running(busy, "a")
    lost = req.pages.pop()
    finish(busy)
    assert busy.scheduler.state.pool.quarantined == {lost}


@noticed_by(Witness.LEDGER_AUDIT)
def test_a_tree_node_whose_list_lost_a_page_is_removed() -> None:
    """Its tokens would not match its pages."""
    world = World(Shape(num_pages=40, memory_check="quarantine"))
    world.generate("old", text("x" * 20), greedy(1))
    world.run()
    node = next(world.pool.tree_cache.walk())  # type: ignore[attr-defined]
    del node.pages[0]
    world.generate("b", text("b " + "y" * 9), greedy(30, ignore_eos=True))
    world.run()
    assert node not in list(world.pool.tree_cache.walk())  # type: ignore[attr-defined]
    world.generate("again", text("x" * 20 + "z"), greedy(8, ignore_eos=True))
    ample = World(Shape(num_pages=400, cache=False))
    ample.generate("again", text("x" * 20 + "z"), greedy(8, ignore_eos=True))
    assert world.run()["again"].tokens == ample.run()["again"].tokens
    assert world.scheduler.state.metrics.totals[VIOLATIONS] == 1
