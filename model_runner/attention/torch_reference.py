"""Attention in plain torch on any device: the reference for the tests and benchmarks of the other backends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool
from . import AttentionBackend, LayerAttention


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """See ``BackendModule``. This backend is always available."""
    return None


def build(pool: KVPool) -> AttentionBackend:
    """Create the reference backend over ``pool``."""
    return TorchAttention(pool)


@dataclass(frozen=True, slots=True)
class Group:
    """Items whose attention is computed together. Each has Q queries; contexts are padded to L positions.

    Attributes:
        first: index in the batch of the items' first token.
        last: index in the batch after the items' last token.
        slots: int64 [items, L], the pool slots of the context.
        queries: int64 [items, Q], the positions of the queries.
    """

    first: int
    last: int
    slots: Tensor
    queries: Tensor


class TorchAttention:
    """Gathers the K/V of the items: of decode items in one padded batch, of prefill chunks one by one."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self._batch_slots = torch.empty(0, dtype=torch.int64)
        self._groups: list[Group] = []
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``."""
        self.plan_chunks(batch)
        if batch.num_decodes:
            self._groups.insert(0, self._group(batch, 0, batch.num_decodes, first=0))

    def plan_chunks(self, batch: ForwardBatch) -> None:
        """Prepare only the prefill chunks. ``attend`` then skips the decode items."""
        self._batch_slots = batch.slots
        self._masks.clear()
        self._groups = []
        token = batch.num_decodes
        for item in range(batch.num_decodes, len(batch.rows)):
            self._groups.append(self._group(batch, item, item + 1, first=token))
            token += batch.query_lens[item]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``."""
        self.pool.write(layer.index, self._batch_slots, k, v)
        return self.attend(q, layer)

    def attend(self, q: Tensor, layer: LayerAttention) -> Tensor:
        """Return the attention output of the planned groups, in order. Their K and V must already be in the pool."""
        outs = [
            self._attend(index, group, q[group.first : group.last], layer) for index, group in enumerate(self._groups)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _group(self, batch: ForwardBatch, begin: int, end: int, *, first: int) -> Group:
        ends = [batch.starts[item] + batch.query_lens[item] for item in range(begin, end)]
        length, page_size = max(ends), self.pool.page_size
        positions = torch.arange(length, device=batch.slots.device)
        # Beyond an item's end, the page table is stale and the pool may contain NaN: the item's own position 0 is read
        # instead.
        own = torch.where(positions < batch.item_ends[begin:end, None], positions, 0)  # [items, L]
        pages = batch.page_table[batch.item_rows[begin:end, None], own // page_size]
        last = first + sum(batch.query_lens[begin:end])
        queries = batch.positions[first:last].view(end - begin, -1)
        return Group(first, last, pages.long() * page_size + own % page_size, queries)

    def _attend(self, index: int, group: Group, q: Tensor, layer: LayerAttention) -> Tensor:
        items, length = group.slots.shape
        kv_size = (items, length, layer.num_kv_heads, layer.head_dim)
        keys = self.pool.keys(layer.index).index_select(0, group.slots.flatten()).view(kv_size).transpose(1, 2)
        values = self.pool.values(layer.index).index_select(0, group.slots.flatten()).view(kv_size).transpose(1, 2)
        queries = q.reshape(items, -1, layer.num_heads, layer.head_dim).transpose(1, 2)  # [items, heads, Q, head_dim]
        mask = self._mask(index, group, layer.window)
        if layer.softcap or layer.sinks is not None:
            out = _explicit(queries, keys, values, mask, layer)
        else:
            out = functional.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                scale=layer.scale,
                enable_gqa=layer.num_heads != layer.num_kv_heads,
            )
        return out.transpose(1, 2).flatten(0, 1)

    def _mask(self, index: int, group: Group, window: int | None) -> Tensor | None:
        """Return the attention mask, bool [items, 1, Q, L]; None if every query attends to every position."""
        key = (index, window)
        if key not in self._masks:
            positions = torch.arange(group.slots.shape[1], device=group.slots.device)
            queries = group.queries[:, None, :, None]
            visible = positions <= queries
            if window is not None:
                visible &= positions > queries - window
            self._masks[key] = None if group.queries.numel() == 1 and window is None else visible
        return self._masks[key]


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, layer: LayerAttention) -> Tensor:
    """Compute attention with soft-capped scores or sinks, with the softmax in float32.

    q: [items, heads, Q, head_dim]. k, v: [items, kv_heads, L, head_dim].
    """
    repeats = layer.num_heads // layer.num_kv_heads
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q @ k.transpose(2, 3)).float() * layer.scale
    if layer.softcap:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.float().view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat((scores, sinks), -1)
    weights = scores.softmax(-1)[..., : k.shape[2]]
    return weights.to(v.dtype) @ v
