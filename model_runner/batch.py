"""The input of one forward pass: a step plan flattened into tensors.

The module does not depend on models, sampling or backends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .kv.state_memory import BatchStates


@dataclass(frozen=True, slots=True)
class PoolPlaces:
    """The places of a batch's tokens in one pool. The attributes are described in ``ForwardBatch``."""

    slots: Tensor
    page_table: Tensor


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The tokens of one step, item by item: first ``num_decodes`` items of one token, then the prefill chunks.

    T is the number of tokens, N the number of items, and W the number of wanted positions. All tensors are on the
    device; the lists are on the host.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T].
        slots: int64 [T], the slot in the first pool to which each token's K/V is written.
        wanted: int64 [W], indices of the tokens whose states are wanted: first the tokens to sample after, then the
            tokens to embed, then the tokens before a prompt token whose log-probability is requested; each in item
            order.
        item_rows: int64 [N], the page-table row of each item.
        item_ends: int64 [N], the context length of each item after this step.
        cu_query_lens: int32 [N + 1], cumulative sums of ``query_lens``: the tokens of item i start at entry i.
        page_table: int32 [rows, max_pages], already updated for this step. Entries after an item's last page are stale,
            and so are the pool slots after its last token. In a pool with a window, entries of pages before the window
            of the item's first token are stale too. Stale contents must not influence a result.
        rows: the values of ``item_rows``, on the host.
        starts: the position of each item's first token.
        query_lens: the number of tokens of each item.
        more_pools: ``slots`` and ``page_table`` for the other pools of ``RunnerInfo.pools``, in order.
        states: the recurrent states; None for a model without them.
        embeds: True if ``Model.hidden`` will be called.
        any_rows: True for the batch of a captured decode graph, whose tensors get other values later. ``rows`` is then
            meaningless, and ``starts`` are upper bounds.
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
    states: BatchStates | None = None
    embeds: bool = False
    any_rows: bool = False

    @property
    def num_tokens(self) -> int:
        """The number of tokens, T."""
        return self.token_ids.shape[0]
