"""Attention in plain torch on any device: the reference for the tests and benchmarks of the other backends."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool
from . import AttentionBackend, LayerAttention

PAGE_MULTIPLE = 1


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """See ``BackendModule``. This backend is always available."""
    return None


def build(pool: KVPool) -> AttentionBackend:
    """Create the reference backend over ``pool``."""
    return TorchAttention(pool)


@dataclass(frozen=True, slots=True)
class Group:
    """Items whose attention is computed together. Each has Q queries and reads L positions, including padding.

    Attributes:
        first: index in the batch of the items' first token.
        last: index in the batch after the items' last token.
        slots: int64 [items, L], the pool slots of the positions.
        mask: bool [items, 1, Q, L], the positions that each query sees; None if it sees all of them.
    """

    first: int
    last: int
    slots: Tensor
    mask: Tensor | None


class TorchAttention:
    """Gathers the K/V of the items: of decode items in one padded batch, of prefill chunks one by one."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self._batch: ForwardBatch | None = None
        self._has_decodes = True
        self._groups: dict[int | None, list[Group]] = {}  # by the window of the layer

    @property
    def pools(self) -> tuple[KVPool, ...]:
        """See ``AttentionBackend``."""
        return (self.pool,)

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``. The positions to read are computed later, when the window of a layer is known."""
        self._batch, self._has_decodes = batch, batch.num_decodes > 0
        self._groups.clear()

    def plan_chunks(self, batch: ForwardBatch) -> None:
        """Plan only the prefill chunks. ``attend`` then skips the decode items."""
        self.plan(batch)
        self._has_decodes = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``."""
        assert self._batch is not None
        self.pool.write(layer.index, self._batch.slots, k, v)
        return self.attend(q, layer)

    def attend(self, q: Tensor, layer: LayerAttention) -> Tensor:
        """Return the attention output of the planned groups, in order. Their K and V must already be in the pool."""
        if layer.window not in self._groups:
            self._groups[layer.window] = self._make_groups(layer.window)
        outs = [self._attend(group, q[group.first : group.last], layer) for group in self._groups[layer.window]]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _make_groups(self, window: int | None) -> list[Group]:
        batch = self._batch
        assert batch is not None
        groups = [self._group(slice(0, batch.num_decodes), 0, window)] if self._has_decodes else []
        token = batch.num_decodes
        for item in range(batch.num_decodes, len(batch.rows)):
            groups.append(self._group(slice(item, item + 1), token, window))
            token += batch.query_lens[item]
        return groups

    def _attend(self, group: Group, q: Tensor, layer: LayerAttention) -> Tensor:
        items, length = group.slots.shape
        kv_size = (items, length, layer.num_kv_heads, layer.head_dim)
        keys = self.pool.keys(layer.index).index_select(0, group.slots.flatten()).view(kv_size).transpose(1, 2)
        values = self.pool.values(layer.index).index_select(0, group.slots.flatten()).view(kv_size).transpose(1, 2)
        queries = q.reshape(items, -1, layer.num_heads, layer.head_dim).transpose(1, 2)  # [items, heads, Q, head_dim]
        if layer.softcap or layer.sinks is not None:
            out = _explicit(queries, keys, values, group.mask, layer)
        else:
            out = functional.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=group.mask,
                scale=layer.scale,
                enable_gqa=layer.num_heads != layer.num_kv_heads,
            )
        return out.transpose(1, 2).flatten(0, 1)

    def _group(self, items: slice, first: int, window: int | None) -> Group:
        """Return the group of consecutive items. first: index in the batch of their first token."""
        batch = self._batch
        assert batch is not None
        starts, lens = batch.starts[items], batch.query_lens[items]
        reach = max(starts) + 1 if window is None else window  # number of positions that a query may read
        length = max(start + count - max(start - reach + 1, 0) for start, count in zip(starts, lens, strict=True))
        firsts = (batch.item_ends - batch.cu_query_lens.diff() - reach + 1)[items, None].clamp(min=0)
        positions = firsts + torch.arange(length, device=batch.slots.device)  # [items, L]
        # Beyond an item's end, the page table is stale and the pool may contain NaN: the item's own first position is
        # read instead.
        own = torch.where(positions < batch.item_ends[items, None], positions, firsts)
        pages = batch.page_table[batch.item_rows[items, None], own // self.pool.page_size].long()
        last = first + sum(lens)
        queries = batch.positions[first:last].view(len(lens), 1, -1, 1)
        mask = positions[:, None, None] <= queries
        if window is not None:
            mask &= positions[:, None, None] > queries - window
        slots = pages * self.pool.page_size + own % self.pool.page_size
        return Group(first, last, slots, None if queries.numel() == 1 else mask)


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
