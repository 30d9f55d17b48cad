"""One pool of the simulated runner, with its page table. In place of K/V, it stores hashes of tokens and positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import PlanError
from ebbtide.messages import PoolInfo
from ebbtide.paging import pages_for
from ebbtide.plan import PlanItem

Slots = NDArray[np.uint64]
Positions = NDArray[np.int64]

POISON = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
TOKEN_BITS = 9  # low bits of a slot, which contain the token id
POOL_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the contexts of two pools do not cancel each other


class SimPool:
    """The slots and the page table of the pool with index ``number``."""

    def __init__(self, info: PoolInfo, number: int, *, num_rows: int, context_length: int) -> None:
        self.page_size = info.page_size
        self.slots: Slots = np.full((info.num_pages, self.page_size), POISON, dtype=np.uint64)
        self._number = number
        self._window = info.window
        max_pages = pages_for(context_length, self.page_size)
        self._table = np.full((num_rows, max_pages), -1, dtype=np.int64)
        # Each position has its own weight, so that the right pages in the wrong order change the hash.
        self._weights: Slots = np.arange(max_pages * self.page_size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        for _ in range(number):
            self._weights *= POOL_FACTOR

    def prepare(self, item: PlanItem) -> None:
        """Apply the item's page-table writes. Raises PlanError if its last token has no page."""
        row, (index, pages) = item.row, item.write_to(self._number)
        end = index + len(pages)
        if pages:
            if end > self._table.shape[1] or not 0 <= min(pages) <= max(pages) < len(self.slots):
                raise PlanError(
                    f"row {row}: pages {pages[:4]} … from page index {index} on are outside the pool or the page table"
                )
            self._table[row, index:end] = pages
        if item.init is not None:
            self._table[row, end:] = -1
        last_page = (item.end - 1) // self.page_size
        if last_page >= self._table.shape[1] or self._table[row, last_page] < 0:
            raise PlanError(f"row {row}: position {item.end - 1} has no page")

    def write(self, rows: Positions, positions: Positions, values: Slots) -> None:
        """Store ``values[i]`` in the slot of ``rows[i]`` at ``positions[i]``."""
        self.slots[self._table[rows, positions // self.page_size], positions % self.page_size] = values

    def read(self, row: int, first: int, end: int) -> Slots:
        """Return the slots of the row's positions from ``first`` up to, but not including, ``end``."""
        begin = first // self.page_size
        slots = self.slots[self._table[row, begin : pages_for(end, self.page_size)]].reshape(-1)
        return slots[first - begin * self.page_size : end - begin * self.page_size]

    def context(self, row: int, end: int) -> int:
        """Return a hash over the slots that the row's token at position ``end - 1`` reads."""
        first = 0 if self._window is None else max(end - self._window, 0)
        return int(np.add.reduce(self.read(row, first, end) * self._weights[first:end]))

    def contexts(self, row: int, first: int, end: int) -> Slots:
        """Return the ``context`` hashes of the tokens from ``first`` up to, but not including, ``end``."""
        low = 0 if self._window is None else max(first + 1 - self._window, 0)
        sums = np.cumsum(self.read(row, low, end) * self._weights[low:end], dtype=np.uint64)
        found: Slots = sums[first - low :].copy()
        if self._window is not None:
            skipped = self._window + low - first  # the first tokens read all slots from ``low`` on
            found[skipped:] -= sums[: max(len(found) - skipped, 0)]
        return found


def slot_value(tokens: Slots, positions: Positions) -> Slots:
    """Return the 64-bit slots of tokens at positions: a hash in the high bits, the token id in the low bits."""
    mixed = (tokens + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + positions.astype(np.uint64) * np.uint64(
        0xD1B54A32D192ED03
    )
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return (mixed << np.uint64(TOKEN_BITS)) | tokens
