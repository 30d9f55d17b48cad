"""One page table per pool: each applies its own page numbers of an item."""

from __future__ import annotations

import pytest
import torch

from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import PoolInfo, SamplingParams
from ebbtide.model_runner.kv.page_table import PageTable, stage_tokens
from ebbtide.plan import PageWrite, PlanItem, RowInit

CPU = torch.device("cpu")


def tables() -> list[PageTable]:
    pools = (PoolInfo(8, 4), PoolInfo(6, 2, "second"))
    return [PageTable(2, 16, pool, device=CPU, number=number) for number, pool in enumerate(pools)]


def first_item(*more: PageWrite) -> PlanItem:
    """Five tokens of row 1."""
    init = RowInit(SamplingParams(max_tokens=9), 5)
    return PlanItem(1, 0, [1, 2, 3, 4, 5], [7, 3], init=init, more_pages=more)


def test_each_pool_of_a_batch_has_its_own_slots_and_page_table() -> None:
    both = tables()
    items = [first_item(PageWrite(1, 0, [5, 0, 2]))]
    for table in both:
        table.write(table.stage(items))
    batch = stage_tokens(items, 1 << 20).batch(both, torch.zeros(2, dtype=torch.int64))
    assert batch.slots.tolist() == [28, 29, 30, 31, 12]
    (second,) = batch.more_pools
    assert second.slots.tolist() == [10, 11, 0, 1, 4]
    assert second.page_table is both[1].tensor
    assert second.page_table[1, :3].tolist() == [5, 0, 2]


@pytest.mark.parametrize(
    "more",
    [(), (PageWrite(1, 0, [5, 0]),), (PageWrite(1, 1, [5, 0, 2]),), (PageWrite(1, 0, [5, 0, 6]),)],
    ids=["no pages", "too few pages", "a gap", "a page outside the pool"],
)
def test_an_item_without_its_pages_in_the_second_pool_is_rejected(more: tuple[PageWrite, ...]) -> None:
    first, second = tables()
    first.stage([first_item(*more)])
    with pytest.raises(PlanError):
        second.stage([first_item(*more)])


def windowed() -> PageTable:
    """Pages of 4 tokens for a window of 6."""
    return PageTable(2, 64, PoolInfo(8, 4, "swa", 6), device=CPU, number=1)


def window_item(start: int, *more: PageWrite, starts: bool = True) -> PlanItem:
    init = RowInit(SamplingParams(max_tokens=9), 40) if starts else None
    return PlanItem(1, start, [1, 2, 3], init=init, more_pages=more)


def test_a_row_of_a_window_may_start_at_the_page_in_which_its_window_begins() -> None:
    table = windowed()
    table.write(table.stage([window_item(20, PageWrite(1, 3, [7, 2, 4]))]))  # token 20 reads 15 to 20
    assert table.tensor[1, 3:6].tolist() == [7, 2, 4]
    assert table.slots(torch.tensor([1, 1]), torch.tensor([15, 22])).tolist() == [7 * 4 + 3, 4 * 4 + 2]
    table.write(table.stage([window_item(23, PageWrite(1, 6, [7]), starts=False)]))
    assert table.tensor[1, 3:7].tolist() == [7, 2, 4, 7]


@pytest.mark.parametrize(
    "write",
    [PageWrite(1, 4, [7, 2]), PageWrite(1, 3, [7, 2])],
    ids=["no page for the window", "no page for the tokens"],
)
def test_a_row_of_a_window_needs_the_pages_that_its_tokens_read(write: PageWrite) -> None:
    with pytest.raises(PlanError):
        windowed().stage([window_item(20, write)])


@pytest.mark.parametrize("index", [2, 7])
def test_pages_of_a_window_continue_those_of_the_row(index: int) -> None:
    table = windowed()
    table.stage([window_item(20, PageWrite(1, 3, [7, 2, 4]))])
    with pytest.raises(PlanError, match=f"Pages {index} to {index + 1} do not continue the pages 3 to 6"):
        table.stage([window_item(23, PageWrite(1, index, [1]), starts=False)])


def test_a_table_that_does_not_fit_into_memory_is_one_sentence() -> None:
    with pytest.raises(StartupError, match=r"1048576 rows \(--max-running-requests\) of 134217728 pages"):
        PageTable(1 << 20, (1 << 31) - 1, PoolInfo(8, 16), device=CPU)
