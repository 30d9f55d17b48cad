"""Ownership errors and their description, and a pool of a new kind in addition to the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.scheduler.health.dump import take_snapshot
from ebbtide.scheduler.memory.accounting import (
    SWEEP_PAGES,
    OwnershipError,
    PoolAccounting,
    Sweep,
    compare_with_ledger,
    describe,
    rebuild,
)
from ebbtide.scheduler.memory.allocator import PageAllocator
from ebbtide.scheduler.memory.cached_request import CachedRequest
from ebbtide.scheduler.memory.ledger import PageOwner
from ebbtide.scheduler.request import Request

from ..make import request
from ..world import World, greedy, text


def test_a_page_with_one_owner_in_list_and_ledger_has_no_error() -> None:
    allocator, req = PageAllocator(8, 4), request("a")
    pages = allocator.take(3, req)
    assert compare_with_ledger(allocator, [(req, pages)]) == []


def test_pages_with_no_owner_two_owners_or_another_owner_have_errors() -> None:
    allocator, first, second = PageAllocator(8, 4), request("a"), request("b")
    pages = allocator.take(3, first)
    errors = compare_with_ledger(allocator, [(first, [pages[0]]), (second, [pages[0], pages[2]])])
    assert errors == [
        OwnershipError(pages[0], (first, second), first),
        OwnershipError(pages[1], (), first),
        OwnershipError(pages[2], (second,), first),
    ]


def test_a_quarantined_page_must_have_no_owner() -> None:
    allocator, req = PageAllocator(8, 4), request("a")
    page = allocator.take(1, req)[0]
    assert compare_with_ledger(allocator, [], {page}) == []
    assert compare_with_ledger(allocator, [(req, [page])], {page}) == [OwnershipError(page, (req,), req)]


def test_the_description_names_every_owner_and_the_last_moves() -> None:
    allocator, first, second = PageAllocator(8, 4), request("a"), request("b")
    pages = allocator.take(2, first)
    words = describe(compare_with_ledger(allocator, [(first, pages[:1]), (second, pages[:1])]), allocator.ledger)
    assert words == (
        "page 0 is listed by request a and request b, but the ledger records request a; last moves: the free list -> "
        "request a; page 1 is listed by no owner, but the ledger records request a; last moves: the free list -> "
        "request a"
    )


def test_the_description_is_short_for_any_number_of_errors() -> None:
    allocator = PageAllocator(10_000, 4)
    allocator.take(10_000, request("a"))
    words = describe(compare_with_ledger(allocator, []), allocator.ledger)
    assert "10000 pages have errors in total, among them 4, 5, 6" in words
    assert len(words) < 1000


def test_without_errors_the_description_shows_the_last_moves_of_any_page() -> None:
    allocator = PageAllocator(8, 4)
    allocator.take(2, request("a"))
    assert "so a counter is wrong; last moves of any page: the free list -> request a: pages 0, 1" in describe(
        [], allocator.ledger
    )


class StatePool:
    """SSM state as another kind of page: one page per running request."""

    name = "mamba"
    page_size = 1

    def __init__(self) -> None:
        self.quarantined: set[int] = set()
        self.allocator = PageAllocator(16, 1)
        self.ledger = self.allocator.ledger
        self.held: dict[str, list[int]] = {}
        self.uncached = 0

    def take(self, req: Request) -> None:
        self.held[req.rid] = self.allocator.take(1, req)
        self.uncached += 1

    def accounting(self) -> PoolAccounting:
        return PoolAccounting(self.allocator.available_pages, 0, 0, 0, self.uncached, 16 - len(self.quarantined))

    def recount(self, running: Sequence[CachedRequest]) -> int:
        return sum(len(self.held.get(req.rid, ())) for req in running)

    def owners(self, running: Iterable[CachedRequest]) -> list[tuple[PageOwner, Sequence[int]]]:
        return [(req, self.held.get(req.rid, [])) for req in running]

    def find_ownership_errors(self, running: Iterable[CachedRequest]) -> list[OwnershipError]:
        return compare_with_ledger(self.allocator, self.owners(running), self.quarantined)

    def sweep(self, running: Sequence[CachedRequest]) -> list[OwnershipError]:
        return self.find_ownership_errors(running)

    def repair(self, running: Sequence[CachedRequest]) -> None:
        self.quarantined.update(error.page for error in self.find_ownership_errors(running))
        self.held = {req.rid: self.held[req.rid] for req in running if req.rid in self.held}
        rebuild(self.allocator, self.owners(running), self.quarantined)
        self.uncached = self.recount(running)


@pytest.fixture
def world() -> World:
    """One decoding request with a page in a pool of a new kind."""
    world = World()
    states = StatePool()
    world.scheduler.state.pools.append(states)
    world.generate("a", text("hello"), greedy(50, ignore_eos=True))
    world.receive()
    world.dispatch()
    states.take(world.scheduler.state.running[0])
    return world


def states_of(world: World) -> StatePool:
    pool = world.scheduler.state.pools[-1]
    assert isinstance(pool, StatePool)
    return pool


def test_a_pool_of_a_new_kind_is_checked_dumped_and_measured(world: World) -> None:
    world.scheduler.self_check_during_busy()
    assert [name for name, _ in take_snapshot(world.scheduler, None).accounting] == ["full", "mamba"]
    assert world.scheduler.snapshot().gauges["kv_uncached_tokens{pool=mamba}"] == 1


def test_a_leak_in_a_pool_of_a_new_kind_is_reported_with_page_and_owner(world: World) -> None:
    states_of(world).held.clear()
    said = "pool mamba: requests hold 0 private pages, but 1 are counted; page 0 is listed by no owner"
    with pytest.raises(InvariantViolation, match=said):
        world.scheduler.self_check_during_busy()


def test_a_page_with_another_owner_in_the_ledger_is_found_in_a_pool_of_a_new_kind(world: World) -> None:
    states_of(world).ledger.assign([0], request("somebody"))
    with pytest.raises(
        InvariantViolation, match="pool mamba: page 0 is listed by request a, but the ledger records request s"
    ):
        world.scheduler.self_check_during_busy()


@pytest.mark.parametrize("num_pages", [64, 100_000])
def test_a_sweep_checks_few_pages_per_call_and_all_pages_eventually(num_pages: int) -> None:
    allocator = PageAllocator(num_pages, 4)
    sweep = Sweep(allocator)
    checked: list[int] = []
    free_pages = allocator.free_pages
    allocator.free_pages = lambda start=0, end=None: checked.extend(free_pages(start, end)) or []  # type: ignore[method-assign,func-returns-value]
    sweep.check_free_list()
    assert 0 < len(checked) <= min(SWEEP_PAGES, num_pages // 64)
    for _ in range(math.ceil(1 / sweep.share)):
        sweep.check_free_list()
    assert set(checked) == set(range(num_pages))
    assert {item for _ in range(10) for item in sweep.next_share(range(10))} == set(range(10))
