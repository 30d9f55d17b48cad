"""The rows' page tables and a plan's way into a batch. The only place that reads a plan's items."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.paging import pages_for
from ebbtide.plan import PlanItem, StepPlan

from ..batch import ForwardBatch


class PageTable:
    """Which pages hold each row's tokens: int32 [rows, max_pages] on the device, and how many per row on the host."""

    def __init__(
        self, num_rows: int, context_length: int, *, num_pages: int, page_size: int, device: torch.device
    ) -> None:
        self.page_size = page_size
        self._num_pages = num_pages
        self._context_length = context_length
        max_pages = pages_for(context_length, page_size)
        self.tensor = torch.zeros(num_rows, max_pages, dtype=torch.int32, device=device)
        self._held = [0] * num_rows

    def apply(self, items: list[PlanItem]) -> None:
        """Write the items' pages. Raises PlanError, before anything is written, if one reaches outside."""
        held = {item.row: self._check(item) for item in items}
        if len(held) < len(items):
            raise PlanError("A plan has two items of one row.")
        places: list[int] = []
        pages: list[int] = []
        width = self.tensor.shape[1]
        for item in items:
            self._held[item.row] = held[item.row]
            first = item.row * width + item.page_index
            places.extend(range(first, first + len(item.pages)))
            pages.extend(item.pages)
        if pages:
            device = self.tensor.device
            flat = self.tensor.view(-1)
            flat[torch.tensor(places, device=device)] = torch.tensor(pages, dtype=torch.int32, device=device)

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Where in the pool the tokens at ``positions`` of ``rows`` lie; all int64 [T]."""
        return self.tensor[rows, positions // self.page_size].long() * self.page_size + positions % self.page_size

    def _check(self, item: PlanItem) -> int:
        """How many pages the row has once the item is applied."""
        if not 0 <= item.row < len(self._held):
            raise PlanError(f"There is no row {item.row}; the runner has {len(self._held)}.")
        before = 0 if item.init is not None else self._held[item.row]
        last = item.page_index + len(item.pages)
        if not 0 <= item.page_index <= before or last > self.tensor.shape[1]:
            raise PlanError(f"Pages {item.page_index} to {last} do not continue the {before} pages of row {item.row}.")
        if item.pages and not (min(item.pages) >= 0 and max(item.pages) < self._num_pages):
            raise PlanError(f"Row {item.row} is given a page outside the pool of {self._num_pages} pages.")
        held = max(before, last)
        end = item.start + _length(item)
        if item.start < 0 or _length(item) == 0 or end > min(held * self.page_size, self._context_length):
            raise PlanError(f"Tokens {item.start} to {end} of row {item.row} do not fit its {held} pages.")
        return held


def gather_inputs(plan: StepPlan, table: PageTable, last_tokens: Tensor) -> ForwardBatch:
    """Flatten a plan whose pages are already in the table.

    last_tokens: int64 [rows], each row's own last sample, for the items that bring no tokens.
    """
    items = plan.items
    device = table.tensor.device
    lens = [_length(item) for item in items]
    starts = [item.start for item in items]
    rows = [item.row for item in items]
    item_rows, item_starts, query_lens = torch.tensor([rows, starts, lens], device=device).unbind(0)
    item_ends = item_starts + query_lens
    num_tokens = sum(lens)
    token_rows, positions = item_rows, item_starts
    if num_tokens > len(items):
        lasts = query_lens.cumsum(0)
        token_rows = item_rows.repeat_interleave(query_lens, output_size=num_tokens)
        shifts = (item_ends - lasts).repeat_interleave(query_lens, output_size=num_tokens)
        positions = torch.arange(num_tokens, device=device) + shifts
    return ForwardBatch(
        token_ids=_token_ids(items, last_tokens),
        positions=positions,
        slots=table.slots(token_rows, positions),
        wanted=_wanted(items, lens, device),
        item_rows=item_rows,
        item_ends=item_ends,
        page_table=table.tensor,
        rows=rows,
        starts=starts,
        query_lens=lens,
        num_decodes=_leading_ones(lens),
    )


def _wanted(items: list[PlanItem], lens: list[int], device: torch.device) -> Tensor:
    """See ``ForwardBatch``. Raises PlanError if an item asks for prompt log-probabilities past its tokens."""
    sampled: list[int] = []
    before_targets: list[int] = []
    for item, end in zip(items, accumulate(lens), strict=True):
        if item.samples:
            sampled.append(end - 1)
        if item.prompt_logprobs is not None:
            first = end - _length(item) + item.prompt_logprobs.first
            last = first + len(item.prompt_logprobs.targets)
            if item.prompt_logprobs.first < 0 or last > end:
                raise PlanError(f"Row {item.row} asks for prompt log-probabilities past its {_length(item)} tokens.")
            before_targets.extend(range(first, last))
    return torch.tensor(sampled + before_targets, dtype=torch.int64, device=device)


def _token_ids(items: list[PlanItem], last_tokens: Tensor) -> Tensor:
    ids: list[int] = []
    places: list[int] = []
    rows: list[int] = []
    for item in items:
        if item.tokens is None:
            places.append(len(ids))
            rows.append(item.row)
            ids.append(0)
        else:
            ids.extend(item.tokens)
    token_ids = torch.tensor(ids, device=last_tokens.device)
    if rows:
        device = last_tokens.device
        token_ids[torch.tensor(places, device=device)] = last_tokens[torch.tensor(rows, device=device)]
    return token_ids


def _length(item: PlanItem) -> int:
    return 1 if item.tokens is None else len(item.tokens)


def _leading_ones(lens: list[int]) -> int:
    return next((number for number, length in enumerate(lens) if length != 1), len(lens))
