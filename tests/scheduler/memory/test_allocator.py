from __future__ import annotations

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.scheduler.memory.allocator import PageAllocator


class Owner:
    is_locked = is_tree_node = False

    def __init__(self, tag: str) -> None:
        self.tag = tag


A, B = Owner("request a"), Owner("request b")


def test_taken_pages_have_the_taker_as_owner() -> None:
    allocator = PageAllocator(4, 16)
    pages = allocator.take(3, A)
    assert pages == [0, 1, 2]
    assert [allocator.ledger.owner(page) for page in range(4)] == [A, A, A, None]
    assert allocator.available_pages == 1
    assert len(allocator.ledger) == 4


def test_taking_more_than_is_free_names_the_taker() -> None:
    with pytest.raises(InvariantViolation, match="request a needs 5 pages, but only 4 are free"):
        PageAllocator(4, 16).take(5, A)


def test_taking_nothing_takes_nothing() -> None:
    allocator = PageAllocator(4, 16)
    assert allocator.take(0, A) == []
    assert allocator.available_pages == 4


def test_a_page_cannot_be_given_back_twice() -> None:
    allocator = PageAllocator(4, 16)
    pages = allocator.take(2, A)
    allocator.give(pages, A)
    with pytest.raises(InvariantViolation, match="page 0 is owned by the free list"):
        allocator.give(pages, A)


def test_pages_of_another_owner_cannot_be_given_back() -> None:
    allocator = PageAllocator(4, 16)
    pages = allocator.take(2, A)
    with pytest.raises(
        InvariantViolation, match="page 0 is owned by request a, so request b cannot move it to the free"
    ):
        allocator.give(pages, B)


def test_the_callback_receives_freed_pages() -> None:
    freed: list[int] = []
    allocator = PageAllocator(4, 16, on_free=freed.extend)
    allocator.give(allocator.take(2, A), A)
    assert freed == [0, 1]
    assert sorted(allocator.free_pages()) == [0, 1, 2, 3]


def test_the_last_moves_of_any_pages_are_recorded() -> None:
    allocator = PageAllocator(32, 16)
    allocator.take(20, B)
    pages = allocator.take(2, A)
    allocator.give(pages, A)
    assert allocator.ledger.recent(2) == [
        "the free list -> request a: pages 20, 21",
        "request a -> the free list: pages 20, 21",
    ]
    assert allocator.ledger.recent(9)[0] == "the free list -> request b: pages 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
    assert PageAllocator(1, 16).ledger.recent(3) == []
