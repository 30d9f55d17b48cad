"""Bugs seeded into a second pool, with and without a window: the same checks must notice them as in the first pool."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from msgspec.structs import replace as with_fields

from ebbtide.messages import PoolInfo
from ebbtide.plan import PageWrite
from ebbtide.scheduler.batching.plan_items import PlanItems
from ebbtide.scheduler.lifecycle import ReleaseReason
from ebbtide.scheduler.memory.cached_request import CachedRequest
from ebbtide.scheduler.memory.kv_pool import KvPool, Shortage
from ebbtide.scheduler.request import Request
from ebbtide.scheduler.request_memory import Memory
from ebbtide.scheduler.retraction import Retractor

from ..health.test_recovery import VIOLATIONS, play_with
from ..loads import Arrival, ample, assert_same, play, random_load
from ..second_pool import Held, SecondPool
from ..world import ALMOST_CERTAIN, Shape, World
from .witnesses import Bug, Witness, noticed

Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.slow
WINDOW = 30  # tokens


@cache
def expectations() -> list[tuple[list[Arrival], World, Shape]]:
    """Loads, their outcomes in an ample second pool, and a shape whose second pool causes retractions."""
    cases = []
    for seed, window in ((1, None), (2, WINDOW)):
        load = random_load(seed, count=16, aborts=True)
        expected = play(load, replace(ample(4), second=PoolInfo(6000, 8, "second", window)))
        pages = 60 if window is None else 24
        tight = PoolInfo(pages, 4, "second", window)
        cases.append((load, expected, Shape(num_pages=4000, num_rows=16, chunk=7, risk=ALMOST_CERTAIN, second=tight)))
    return cases


def play_all() -> None:
    for load, expected, shape in expectations():
        world = play(load, shape)
        assert_same(load, expected, world)
        assert world.events


def a_page_of_the_second_pool_is_not_freed(patch: Patch) -> None:
    def release(self: SecondPool, req: CachedRequest, *, is_insert: bool) -> None:
        pages = self.held.pop(req.rid, Held()).pages
        self.allocator.give(pages[:-1], req)
        self.num_held -= len(pages)

    patch.setattr(SecondPool, "release_kv_cache", release)


def a_page_of_the_second_pool_is_freed_twice(patch: Patch) -> None:
    original = SecondPool.release_kv_cache

    def release(self: SecondPool, req: CachedRequest, *, is_insert: bool) -> None:
        pages = self.held.get(req.rid, Held()).pages[:1]
        original(self, req, is_insert=is_insert)
        self.allocator._free += pages

    patch.setattr(SecondPool, "release_kv_cache", release)


def pages_of_the_second_pool_are_not_counted(patch: Patch) -> None:
    original = SecondPool.allocate_up_to

    def allocate(self: SecondPool, req: CachedRequest, num_tokens: int) -> int:
        before = self.num_held
        end = original(self, req, num_tokens)
        self.num_held = before
        return end

    patch.setattr(SecondPool, "allocate_up_to", allocate)


def _kept(patch: Patch, reason: ReleaseReason) -> None:
    original = Memory.release_req

    def release(self: Memory, req: Request, why: ReleaseReason) -> bool:
        pools = self.pools
        self.pools = pools[:1] if why is reason else pools
        try:
            return original(self, req, why)
        finally:
            self.pools = pools

    patch.setattr(Memory, "release_req", release)


def a_finish_keeps_the_pages_of_the_second_pool(patch: Patch) -> None:
    _kept(patch, ReleaseReason.FINISH)


def an_abort_keeps_the_pages_of_the_second_pool(patch: Patch) -> None:
    _kept(patch, ReleaseReason.ABORT)


def a_retraction_keeps_the_pages_of_the_second_pool(patch: Patch) -> None:
    _kept(patch, ReleaseReason.RETRACT)


def page_of_another_request_in_the_second_pool(patch: Patch) -> None:
    """The newest page of a request is replaced by one of another request."""
    original = SecondPool.allocate_up_to

    def allocate(self: SecondPool, req: CachedRequest, num_tokens: int) -> int:
        before = self.num_pages(req)
        end = original(self, req, num_tokens)
        others = [held.pages[0] for rid, held in self.held.items() if rid != req.rid and held.pages]
        if others and self.num_pages(req) > before:
            self.held[req.rid].pages[-1] = others[0]
        return end

    patch.setattr(SecondPool, "allocate_up_to", allocate)


def _written(patch: Patch, **changes: int) -> None:
    original = PlanItems._writes_elsewhere

    def writes(self: PlanItems, req: Request) -> tuple[PageWrite, ...]:
        return tuple(
            with_fields(
                write,
                page_index=write.page_index + changes.get("page_index", 0),
                pages=[(page + changes.get("page", 0)) % 24 for page in write.pages],
            )
            for write in original(self, req)
        )

    patch.setattr(PlanItems, "_writes_elsewhere", writes)


def wrong_page_of_the_second_pool_in_the_plan(patch: Patch) -> None:
    _written(patch, page=1)


def wrong_index_of_the_second_pool_in_the_plan(patch: Patch) -> None:
    _written(patch, page_index=1)


def later_pages_of_the_second_pool_are_not_sent(patch: Patch) -> None:
    original = PlanItems._writes_elsewhere

    def writes(self: PlanItems, req: Request) -> tuple[PageWrite, ...]:
        return tuple(write for write in original(self, req) if not write.page_index)

    patch.setattr(PlanItems, "_writes_elsewhere", writes)


def second_pool_treats_the_pages_of_a_new_row_as_sent(patch: Patch) -> None:
    """A retracted request's pages count as sent when it runs again."""
    original = SecondPool.release_kv_cache

    def release(self: SecondPool, req: CachedRequest, *, is_insert: bool) -> None:
        sent = self.held.get(req.rid, Held()).sent
        original(self, req, is_insert=is_insert)
        if not is_insert:
            self.held[req.rid] = Held(sent=sent)

    patch.setattr(SecondPool, "release_kv_cache", release)


def window_pages_are_freed_two_pages_early(patch: Patch) -> None:
    original = SecondPool._first_needed

    def first(self: SecondPool, req: CachedRequest) -> int:
        needed = original(self, req)
        last = self._of(req).end - 1
        return min(needed + 2, last) if needed and last > needed else needed

    patch.setattr(SecondPool, "_first_needed", first)


def shortage_of_the_second_pool_is_overlooked(patch: Patch) -> None:
    original = Retractor._shortage

    def shortage(self: Retractor, running: list[Request], headroom: int) -> Shortage | None:
        found = original(self, running, headroom)
        return None if found is not None and _is_second(found.pool) else found

    patch.setattr(Retractor, "_shortage", shortage)


def _is_second(pool: KvPool) -> bool:
    return isinstance(pool, SecondPool)


SECOND_POOL_BUGS: dict[Bug, Witness] = {
    a_page_of_the_second_pool_is_not_freed: Witness.EQUATION,
    a_page_of_the_second_pool_is_freed_twice: Witness.EQUATION,
    pages_of_the_second_pool_are_not_counted: Witness.EQUATION,
    a_finish_keeps_the_pages_of_the_second_pool: Witness.EQUATION,
    an_abort_keeps_the_pages_of_the_second_pool: Witness.EQUATION,
    a_retraction_keeps_the_pages_of_the_second_pool: Witness.EQUATION,
    page_of_another_request_in_the_second_pool: Witness.PLAN_AUDIT,
    wrong_page_of_the_second_pool_in_the_plan: Witness.PLAN_AUDIT,
    wrong_index_of_the_second_pool_in_the_plan: Witness.PLAN_AUDIT,
    later_pages_of_the_second_pool_are_not_sent: Witness.RUNNER,
    second_pool_treats_the_pages_of_a_new_row_as_sent: Witness.PLAN_AUDIT,
    window_pages_are_freed_two_pages_early: Witness.TEXT,
    shortage_of_the_second_pool_is_overlooked: Witness.PLANNER,
}
BY_ACCOUNTING = [bug for bug, by in SECOND_POOL_BUGS.items() if by in (Witness.EQUATION, Witness.PLAN_AUDIT)]


def test_the_loads_pass_without_a_seeded_bug() -> None:
    play_all()


@pytest.mark.parametrize("bug", SECOND_POOL_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_in_the_second_pool_is_noticed_by_its_check(bug: Bug) -> None:
    expectations()
    error, witness = noticed(bug, play_all)
    assert witness is SECOND_POOL_BUGS[bug], error


@pytest.mark.parametrize("bug", BY_ACCOUNTING, ids=lambda bug: bug.__name__)
def test_a_bug_found_by_the_accounting_of_the_second_pool_changes_no_answer(bug: Bug) -> None:
    for load, expected, shape in expectations()[:1]:
        assert shape.second is not None
        info = with_fields(shape.second, num_pages=shape.second.num_pages + 20)
        roomy = replace(shape, retract_interval=6, second=info)
        world = play_with(bug, load, roomy)
        assert world.scheduler.state.metrics.totals[VIOLATIONS]
        assert_same(load, expected, world)
