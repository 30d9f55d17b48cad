"""The input of one forward: a step plan flattened into tensors. Independent of models, sampling and backends."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PoolPlaces:
    """Where the tokens of a batch are in one pool; see the attributes of ``ForwardBatch``."""

    slots: Tensor
    page_table: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one step, item after item: first ``num_decodes`` items of one token, then prefill chunks.

    T tokens, N items, W wanted positions; device tensors except the three lists.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T].
        slots: int64 [T], where in the first pool each token's K/V goes.
        wanted: int64 [W], indices into T whose logits are wanted: those to sample from in item order, then those
            before a prompt token whose log-probability is wanted, in item order.
        item_rows: int64 [N], the item's row of the page table.
        item_ends: int64 [N], the item's context length after this step.
        cu_query_lens: int32 [N + 1], 0 and then the running sum of ``query_lens``: item i has tokens [i] to [i + 1].
        page_table: int32 [rows, max_pages], already updated for this step. Entries after an item's last page are
            stale, and so are pool slots after its last token: never let either influence a result.
        rows: the same numbers as ``item_rows``.
        starts: the item's first position.
        query_lens: the item's number of tokens.
        more_pools: the same as ``slots`` and ``page_table`` for the other pools of ``RunnerInfo.pools``, in order.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    wanted: Tensor
    item_rows: Tensor
    item_ends: Tensor
    cu_query_lens: Tensor
    page_table: Tensor
    rows: list[int]
    starts: list[int]
    query_lens: list[int]
    num_decodes: int
    more_pools: list[PoolPlaces] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.token_ids.shape[0]
