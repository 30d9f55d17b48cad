"""The page tables, and the conversion of a plan's items to a batch.

No other module of the model runner reads the tokens and pages of plan items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ebbtide.errors import PlanError, StartupError
from ebbtide.messages import PoolInfo
from ebbtide.paging import pages_for
from ebbtide.plan import PlanItem

from ..batch import ForwardBatch, PoolPlaces
from ..transfers import host_tensor


@dataclass(frozen=True, slots=True)
class PageWrites:
    """The entries of a page table that a plan changes.

    Attributes:
        places: int64 [P], indices into the flattened table, each at most once.
        pages: int32 [P], the page numbers to write there.
    """

    places: Tensor
    pages: Tensor


class PageTable:
    """The page table of one pool, and which pages each row has.

    In the pool of a sliding window, the first plan item of a row may write its first page at any index: no token reads
    the pages before it. Entries whose pages have left the window are stale.

    Attributes:
        tensor: int32 [rows, max_pages], on the device.
        padding_page: number of the page in the row that ``add_padding_row`` added.
    """

    def __init__(
        self, num_rows: int, context_length: int, pool: PoolInfo, *, device: torch.device, number: int = 0
    ) -> None:
        """number: index in ``RunnerInfo.pools``. Raises StartupError if the table does not fit into memory."""
        self.page_size = pool.page_size
        self._number = number
        self._num_pages = pool.num_pages
        self._context_length = context_length
        max_pages = pages_for(context_length, pool.page_size)
        try:
            self.tensor = torch.zeros(num_rows, max_pages, dtype=torch.int32, device=device)
        except RuntimeError as error:  # torch's exception for memory that cannot be allocated
            size = f"{num_rows} rows (--max-running-requests) of {max_pages} pages (--context-length)"
            raise StartupError(f"The page table of {size} does not fit into memory.") from error
        self._window = pool.window
        self._held = [(0, 0)] * num_rows  # the first page index and the one after the last
        self.padding_page = 0

    def add_padding_row(self, page: int) -> int:
        """Add a row that no plan can refer to, with ``page`` in all its entries. Returns the row's number.

        Call it at most once. page: number of a page in the pool's memory that no plan can refer to.
        """
        padding = torch.full_like(self.tensor[:1], page)
        self.tensor = torch.cat((self.tensor, padding))
        self.padding_page = page
        return len(self._held)

    def stage(self, items: list[PlanItem]) -> PageWrites:
        """Return the table entries that ``items`` change, on the host.

        Raises PlanError if an item is invalid; nothing has then been changed.
        """
        held = {item.row: self._check(item) for item in items}
        if len(held) < len(items):
            raise PlanError("A plan has two items of one row.")
        places: list[int] = []
        pages: list[int] = []
        width = self.tensor.shape[1]
        for item in items:
            self._held[item.row] = held[item.row]
            index, written = item.write_to(self._number)
            if written:
                first = item.row * width + index
                places.extend(range(first, first + len(written)))
                pages.extend(written)
        return PageWrites(host_tensor(places, np.int64), host_tensor(pages, np.int32))

    def write(self, writes: PageWrites) -> None:
        """Apply staged writes, which must have been copied to the table's device."""
        if len(writes.pages):
            self.tensor.view(-1)[writes.places] = writes.pages

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the pool slots of the tokens at ``positions`` of ``rows``. All three are int64 [T]."""
        return self.tensor[rows, positions // self.page_size].long() * self.page_size + positions % self.page_size

    def _check(self, item: PlanItem) -> tuple[int, int]:
        """Return the row's page indices after the item's writes. Raises PlanError if the item is invalid."""
        if not 0 <= item.row < len(self._held):
            raise PlanError(f"There is no row {item.row}; the runner has {len(self._held)}.")
        index, pages = item.write_to(self._number)
        first, before = self._held[item.row]
        if item.init is not None:
            first = before = 0 if self._window is None else index
        last = index + len(pages)
        if pages and (not 0 <= first <= index <= before or last > self.tensor.shape[1]):
            raise PlanError(f"Pages {index} to {last} do not continue the pages {first} to {before} of row {item.row}.")
        if pages and not (min(pages) >= 0 and max(pages) < self._num_pages):
            raise PlanError(f"Row {item.row} is given a page outside the pool of {self._num_pages} pages.")
        held = max(before, last)
        end = item.start + _length(item)
        if item.start < 0 or _length(item) == 0 or end > min(held * self.page_size, self._context_length):
            raise PlanError(f"Tokens {item.start} to {end} of row {item.row} do not fit its {held} pages.")
        if self._window is not None and item.start - self._window + 1 < first * self.page_size and first > 0:
            raise PlanError(f"Row {item.row} lacks pages before page {first}, which token {item.start} reads.")
        return first, held


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """The tokens of a plan's N items. O of the T tokens are the last samples of their rows.

    The other attributes are described in ``ForwardBatch``.

    Attributes:
        token_ids: int64 [T], 0 for the last sample of a row.
        own_places: int64 [O], the indices of those last samples among the T tokens.
        own_rows: int64 [O], the rows of those last samples.
        token_rows: int64 [T], the row of each token.
    """

    token_ids: Tensor
    own_places: Tensor
    own_rows: Tensor
    token_rows: Tensor
    positions: Tensor
    wanted: Tensor
    item_rows: Tensor
    item_ends: Tensor
    cu_query_lens: Tensor
    rows: list[int]
    starts: list[int]
    query_lens: list[int]
    embeds: bool

    def batch(self, tables: Sequence[PageTable], last_tokens: Tensor) -> ForwardBatch:
        """Return the batch for uploaded inputs. The page tables must already contain the step's pages.

        tables: one per pool.
        last_tokens: int64 [rows], the last sample of each row.
        """
        if len(self.own_rows):
            self.token_ids[self.own_places] = last_tokens[self.own_rows]
        places = [PoolPlaces(table.slots(self.token_rows, self.positions), table.tensor) for table in tables]
        return ForwardBatch(
            token_ids=self.token_ids,
            positions=self.positions,
            slots=places[0].slots,
            wanted=self.wanted,
            item_rows=self.item_rows,
            item_ends=self.item_ends,
            cu_query_lens=self.cu_query_lens,
            page_table=places[0].page_table,
            rows=self.rows,
            starts=self.starts,
            query_lens=self.query_lens,
            num_decodes=_leading_ones(self.query_lens),
            more_pools=places[1:],
            embeds=self.embeds,
        )


def stage_tokens(items: list[PlanItem], vocab_size: int) -> TokenInputs:
    """Flatten the items on the host.

    Raises PlanError for a token id outside the vocabulary, and for prompt log-probabilities past an item's tokens.
    """
    rows, starts, lens = [item.row for item in items], [item.start for item in items], [_length(item) for item in items]
    item_rows, item_starts, query_lens = (np.array(values, dtype=np.int64) for values in (rows, starts, lens))
    token_rows, positions = item_rows, item_starts
    cu_query_lens = np.zeros(len(items) + 1, dtype=np.int32)
    query_lens.cumsum(out=cu_query_lens[1:])
    if cu_query_lens[-1] > len(items):
        token_rows = item_rows.repeat(query_lens)
        positions = np.arange(len(token_rows)) + (item_starts - cu_query_lens[:-1]).repeat(query_lens)
    ids: list[int] = []
    own_places: list[int] = []
    for item in items:
        if item.tokens is None:
            own_places.append(len(ids))
            ids.append(0)
        else:
            ids.extend(item.tokens)
    token_ids = np.array(ids, dtype=np.int64)
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise PlanError(f"A token id is outside 0..{vocab_size - 1}.")
    return TokenInputs(
        token_ids=torch.from_numpy(token_ids),
        own_places=host_tensor(own_places, np.int64),
        own_rows=host_tensor([item.row for item in items if item.tokens is None], np.int64),
        token_rows=torch.from_numpy(token_rows),
        positions=torch.from_numpy(positions),
        wanted=host_tensor(_wanted(items, lens), np.int64),
        item_rows=torch.from_numpy(item_rows),
        item_ends=torch.from_numpy(item_starts + query_lens),
        cu_query_lens=torch.from_numpy(cu_query_lens),
        rows=rows,
        starts=starts,
        query_lens=lens,
        embeds=any(item.embeds for item in items),
    )


def _wanted(items: list[PlanItem], lens: list[int]) -> list[int]:
    """See ``ForwardBatch``. Raises PlanError if an item requests prompt log-probabilities outside its tokens."""
    sampled: list[int] = []
    embedded: list[int] = []
    before_targets: list[int] = []
    for item, end in zip(items, accumulate(lens), strict=True):
        if item.num_samples:
            sampled.append(end - 1)
        if item.embeds:
            embedded.append(end - 1)
        if item.prompt_logprobs is not None:
            first = end - _length(item) + item.prompt_logprobs.first
            last = first + len(item.prompt_logprobs.targets)
            if item.prompt_logprobs.first < 0 or last > end:
                raise PlanError(
                    f"The item of row {item.row} requests prompt log-probabilities outside its {_length(item)} tokens."
                )
            before_targets.extend(range(first, last))
    return sampled + embedded + before_targets


def _length(item: PlanItem) -> int:
    return 1 if item.tokens is None else len(item.tokens)


def _leading_ones(lens: list[int]) -> int:
    return next((number for number, length in enumerate(lens) if length != 1), len(lens))
