"""The frequency and the values of reported progress."""

from __future__ import annotations

import pytest

from ebbtide.progress import counted


@pytest.mark.parametrize("num_items", [1, 3, 100, 12_345])
def test_progress_is_reported_at_most_once_per_percent_and_up_to_the_end(num_items: int) -> None:
    shares: list[float] = []
    items = list(range(num_items))
    assert list(counted(items, lambda _: 7, 7 * num_items, shares.append)) == items
    assert len(shares) <= min(num_items, 100)
    assert shares == sorted(set(shares))
    assert shares[-1] > 0.98


def test_an_item_counts_when_the_next_one_is_requested() -> None:
    shares: list[float] = []
    items = counted("ab", lambda _: 1, 2, shares.append)
    next(items)
    assert shares == []
    next(items)
    assert shares == [0.5]


def test_wrong_sizes_do_not_exceed_the_whole() -> None:
    shares: list[float] = []
    list(counted("abc", lambda _: 5, 6, shares.append))
    list(counted("abc", lambda _: 0, 0, shares.append))
    assert max(shares) == 1.0
