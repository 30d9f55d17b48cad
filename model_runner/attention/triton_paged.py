"""Paged attention for CUDA with Triton kernels.

The context of a decode item is split over programs, as in Flash-Decoding (Dao et al. 2023). The context of a prefill
chunk is not split.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool
from . import AttentionBackend, LayerAttention

SPLIT_TOKENS = 512
SMALLEST_BLOCK_M = 16  # tensor cores multiply at least 16 rows
# Largest size in bytes of one head of one token → (rows of a prefill block, K/V tokens that a program loads at a time).
# With these sizes, a program fits into 99 KiB of shared memory, which every device since 2020 has.
BLOCK_SIZES = {256: (64, 64), 512: (32, 32), 1024: (16, 32), 2048: (16, 16)}


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """See ``BackendModule``."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if find_spec("triton") is None:
        return "it needs the package triton"
    return None


def block_sizes(head_dim: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the rows of a prefill block, and the number of K/V tokens that a program loads at a time."""
    head_bytes = _power_of_two(head_dim) * dtype.itemsize
    return next(sizes for limit, sizes in BLOCK_SIZES.items() if head_bytes <= limit)


def build(pool: KVPool) -> AttentionBackend:
    """Create the backend over ``pool``."""
    return TritonAttention(pool)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The B query blocks of one kernel launch.

    Attributes:
        items: int32 [B], the index of each block's item.
        firsts: int32 [B], the index in the item of each block's first query.
        block_m: number of rows of a block: queries times query heads per KV head, padded.
    """

    items: Tensor
    firsts: Tensor
    block_m: int


class TritonAttention:
    """Holds the metadata of a step and launches the kernels of each layer."""

    def __init__(self, pool: KVPool) -> None:
        from ..kernels import triton_attention

        self.pool = pool
        self._kernels: Any = triton_attention
        self._batch: ForwardBatch | None = None
        self._lens = torch.empty(0, dtype=torch.int32, device=pool.device)
        self._blocks: dict[tuple[bool, int], _Blocks] = {}  # by (is prefill, query heads per KV head)

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``. Query blocks are created later, when the head counts of a layer are known."""
        self._batch = batch
        self._lens = batch.cu_query_lens.diff()
        self._blocks.clear()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``."""
        assert self._batch is not None, "plan must be called before forward"
        self._write(k, v, layer)
        out = q.new_empty(q.shape)
        num_items = len(self._batch.query_lens)
        if self._batch.num_decodes > 0:
            self._decode(q, out, layer)
        if self._batch.num_decodes < num_items:
            self._launch(q, out, layer, self._query_blocks(layer, prefill=True), None)
        return out

    def _write(self, k: Tensor, v: Tensor, layer: LayerAttention) -> None:
        assert self._batch is not None
        width = layer.num_kv_heads * layer.head_dim
        self._kernels.write_kv[(k.shape[0],)](
            k,
            v,
            self.pool.keys(layer.index),
            self.pool.values(layer.index),
            self._batch.slots,
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            NUM_HEADS=layer.num_kv_heads,
            HEAD_DIM=layer.head_dim,
            BLOCK=_power_of_two(width),
        )

    def _decode(self, q: Tensor, out: Tensor, layer: LayerAttention) -> None:
        """Compute splits of ``SPLIT_TOKENS`` context tokens in parallel, then combine their results."""
        batch = self._batch
        assert batch is not None
        longest = max(batch.starts[: batch.num_decodes]) + 1
        num_splits = -(-longest // SPLIT_TOKENS)
        shape = (batch.num_decodes, layer.num_heads, num_splits)
        partial = q.new_empty((*shape, layer.head_dim), dtype=torch.float32)
        sums = q.new_empty((2, *shape), dtype=torch.float32)
        self._launch(q, out, layer, self._query_blocks(layer, prefill=False), (partial, sums[0], sums[1]))
        self._kernels.combine[(batch.num_decodes, layer.num_heads)](
            out,
            partial,
            sums[0],
            sums[1],
            batch.item_ends,
            _sinks(layer, q),
            num_splits,
            NUM_HEADS=layer.num_heads,
            HEAD_DIM=layer.head_dim,
            SPLIT_TOKENS=SPLIT_TOKENS,
            HAS_SINKS=layer.sinks is not None,
            BLOCK_D=_power_of_two(layer.head_dim),
        )

    def _launch(
        self, q: Tensor, out: Tensor, layer: LayerAttention, blocks: _Blocks, partial: tuple[Tensor, ...] | None
    ) -> None:
        """Launch the attention kernel once. It writes splits to ``partial`` if given, else the result to ``out``."""
        batch = self._batch
        assert batch is not None
        num_splits = 1 if partial is None else partial[0].shape[2]
        self._kernels.attend[(blocks.items.shape[0], layer.num_kv_heads, num_splits)](
            q,
            self.pool.keys(layer.index),
            self.pool.values(layer.index),
            out,
            *(partial or (out, out, out)),
            batch.page_table,
            blocks.items,
            blocks.firsts,
            batch.item_rows,
            batch.item_ends,
            batch.cu_query_lens,
            self._lens,
            _sinks(layer, q),
            layer.scale,
            layer.softcap,
            layer.window or 0,
            q.stride(0),
            q.stride(1),
            batch.page_table.stride(0),
            num_splits,
            SPLIT_TOKENS=0 if partial is None else SPLIT_TOKENS,
            BLOCK_M=blocks.block_m,
            **self._constants(layer),
        )

    def _constants(self, layer: LayerAttention) -> dict[str, Any]:
        """Return the compile-time constants of the kernel."""
        return {
            "NUM_KV_HEADS": layer.num_kv_heads,
            "GROUP": layer.num_heads // layer.num_kv_heads,
            "HEAD_DIM": layer.head_dim,
            "PAGE_SIZE": self.pool.page_size,
            "HAS_SOFTCAP": layer.softcap > 0,
            "HAS_WINDOW": layer.window is not None,
            "HAS_SINKS": layer.sinks is not None,
            "EXACT": self.pool.dtype == torch.float32,
            "BLOCK_N": block_sizes(layer.head_dim, self.pool.dtype)[1],
            "BLOCK_D": max(_power_of_two(layer.head_dim), 16),
        }

    def _query_blocks(self, layer: LayerAttention, *, prefill: bool) -> _Blocks:
        """Return the query blocks for this layer's head counts, created once per step."""
        group = layer.num_heads // layer.num_kv_heads
        smallest = block_sizes(layer.head_dim, self.pool.dtype)[0] if prefill else SMALLEST_BLOCK_M
        key = (prefill, group)
        if key not in self._blocks:
            self._blocks[key] = self._make_blocks(group, max(_power_of_two(group), smallest), prefill=prefill)
        return self._blocks[key]

    def _make_blocks(self, group: int, block_m: int, *, prefill: bool) -> _Blocks:
        batch = self._batch
        assert batch is not None
        num_queries = block_m // group  # number of queries per block
        first, last = (batch.num_decodes, len(batch.query_lens)) if prefill else (0, batch.num_decodes)
        num_blocks = sum(-(-length // num_queries) for length in batch.query_lens[first:last])
        counts = (self._lens[first:last] + (num_queries - 1)) // num_queries
        indices = torch.arange(last - first, device=counts.device).repeat_interleave(counts, output_size=num_blocks)
        places = torch.arange(num_blocks, device=counts.device) - (counts.cumsum(0) - counts)[indices]
        return _Blocks((indices + first).int(), (places * num_queries).int(), block_m)


def _sinks(layer: LayerAttention, q: Tensor) -> Tensor:
    """Return the sinks; without sinks, return another tensor, which the kernel does not read."""
    return q if layer.sinks is None else layer.sinks


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
