"""Each kind of accounting error is found, and the message names the page and its owner."""

from __future__ import annotations

import pytest

from ebbtide.errors import InvariantViolation

from ..make import request
from ..world import Shape, World, greedy, text


@pytest.fixture
def busy() -> World:
    """One decoding request and one prompt in the tree."""
    world = World(Shape(num_pages=32))
    world.generate("old", text("x" * 20), greedy(1))
    world.run()
    world.generate("now", text("y" * 9), greedy(50, ignore_eos=True))
    for _ in range(4):
        world.step()
    world.checker.on_idle()
    return world


def test_a_leaked_page_breaks_the_conservation_law(busy: World) -> None:
    busy.allocator._free.pop()
    with pytest.raises(InvariantViolation, match="32 pages, of which 31 are accounted for"):
        busy.checker.self_check_during_busy()


def test_a_page_with_two_owners_is_found_even_if_the_sum_balances(busy: World) -> None:
    (req,) = busy.scheduler.state.running
    node = next(busy.pool.tree_cache.walk())  # type: ignore[attr-defined]
    req.pages[-1] = node.pages[0]
    busy.checker._check_pool_invariant(busy.pool)
    said = f"page {node.pages[0]} is listed by a tree node of 2 pages and request now, but the ledger records a tree"
    with pytest.raises(InvariantViolation, match=said):
        busy.checker.on_idle()


def test_a_page_without_owner_is_found(busy: World) -> None:
    busy.allocator._free[0], lost = busy.allocator._free[1], busy.allocator._free[0]
    with pytest.raises(
        InvariantViolation, match=f"page {lost} is listed by no owner, but the ledger records the free list"
    ):
        busy.checker.on_idle()


def test_a_free_page_with_an_owner_is_found(busy: World) -> None:
    page = busy.allocator._free[0]
    busy.allocator.ledger.move([page], None, request("somebody"))
    with pytest.raises(
        InvariantViolation, match=f"page {page} is listed by the free list, but the ledger records request somebody"
    ):
        busy.checker.on_idle()


def test_a_lost_row_is_found(busy: World) -> None:
    busy.scheduler.state.free_rows.pop()
    with pytest.raises(InvariantViolation, match="rows without exactly one owner: row 1: no owner"):
        busy.checker.on_idle()


def test_a_running_request_that_has_ended_is_found(busy: World) -> None:
    del busy.scheduler.state.requests["now"]
    with pytest.raises(InvariantViolation, match="have ended: \\['now'\\]"):
        busy.checker.on_idle()


def test_a_forgotten_lock_is_found(busy: World) -> None:
    next(busy.pool.tree_cache.walk()).locks += 1  # type: ignore[attr-defined]
    with pytest.raises(InvariantViolation):
        busy.checker.on_idle()


def test_an_extra_lock_on_a_locked_node_is_found(busy: World) -> None:
    node = busy.scheduler.state.running[0].node
    assert node is not None
    node.locks += 1  # type: ignore[attr-defined]
    with pytest.raises(InvariantViolation, match="lock count differs from the number of running requests"):
        busy.checker.on_idle()


def test_a_wrong_counter_of_the_tree_is_found(busy: World) -> None:
    busy.pool.tree_cache.evictable_pages += 1  # type: ignore[misc]
    busy.pool.tree_cache.protected_pages -= 1  # type: ignore[misc]
    busy.checker.self_check_during_busy()
    with pytest.raises(InvariantViolation, match="a recount finds"):
        busy.checker.on_idle()
