"""The input of one forward: a step plan flattened into tensors. Knows nothing of models, sampling or backends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one step, item after item: first ``num_decodes`` items of one token, then prefill chunks.

    T tokens, N items, W wanted positions; device tensors unless noted.

    token_ids: int64 [T]. positions: int64 [T]. slots: int64 [T], where in the pool each token's K/V goes.
    wanted: int64 [W], indices into T whose logits are wanted: those to sample from in item order, then those before a
    prompt token whose log-probability is wanted, in item order.
    item_rows: int64 [N], the item's row of the page table. item_ends: int64 [N], its context length after this step.
    starts, query_lens: on the host, N numbers each: an item's first position and its token count.
    rows: on the host, the same numbers as item_rows.
    page_table: int32 [rows, max_pages], already brought up to date for this step. What it holds behind an item's
    last page is stale, and so is what the pool holds behind an item's last token: never let either into a result.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    wanted: Tensor
    item_rows: Tensor
    item_ends: Tensor
    page_table: Tensor
    rows: list[int]
    starts: list[int]
    query_lens: list[int]
    num_decodes: int

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.token_ids.shape[0]
