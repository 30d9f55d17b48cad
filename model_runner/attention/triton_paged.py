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

LEAST_SPLIT = 256  # tokens; a multiple of all block sizes
MAX_SPLITS = 16
DECODE_PROGRAMS = 512  # enough programs to keep every multiprocessor of a large device busy
SMALLEST_BLOCK_M = 16  # tensor cores multiply at least 16 rows
# Largest size in bytes of one head of one token → (rows of a prefill block, K/V tokens that a program loads at a time).
# With these sizes, a program fits into 99 KiB of shared memory, which every device since 2020 has.
BLOCK_SIZES = {256: (64, 64), 512: (32, 32), 1024: (16, 32), 2048: (16, 16)}
PAGE_MULTIPLE = 1


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
    """The B query blocks of one launch for prefill chunks.

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
        from ..kernels import triton_attention, triton_decode

        self.pool = pool
        self._kernels: Any = triton_attention
        self._decode_kernels: Any = triton_decode
        self._batch: ForwardBatch | None = None
        self._blocks: dict[int, _Blocks] = {}  # by the number of query heads per KV head

    @property
    def pools(self) -> tuple[KVPool, ...]:
        """See ``AttentionBackend``."""
        return (self.pool,)

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``. Query blocks are created later, when the head counts of a layer are known."""
        self._batch = batch
        self._blocks.clear()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``."""
        assert self._batch is not None, "plan must be called before forward"
        self._write(k, v, layer)
        out = q.new_empty(q.shape)
        if self._batch.num_decodes > 0:
            self._decode(q, out, layer)
        if self._batch.num_decodes < len(self._batch.query_lens):
            self._prefill(q, out, layer)
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
        """Compute the attention of splits of each context in parallel, then combine the results."""
        batch = self._batch
        assert batch is not None
        heads = (batch.num_decodes, layer.num_heads, MAX_SPLITS)
        partial = q.new_empty((*heads, layer.head_dim), dtype=torch.float32)
        sums = q.new_empty((2, *heads), dtype=torch.float32)
        splits = {"MAX_SPLITS": MAX_SPLITS, "LEAST_SPLIT": LEAST_SPLIT}
        num_programs = -(-DECODE_PROGRAMS // (batch.num_decodes * layer.num_kv_heads))
        longest = max(batch.starts[: batch.num_decodes]) + 1
        num_programs = min(num_programs, MAX_SPLITS, -(-longest // LEAST_SPLIT))
        self._decode_kernels.decode[(batch.num_decodes, layer.num_kv_heads, num_programs)](
            q,
            self.pool.keys(layer.index),
            self.pool.values(layer.index),
            partial,
            sums[0],
            sums[1],
            batch.page_table,
            batch.item_rows,
            batch.item_ends,
            *self._scalars(q, layer),
            BLOCK_M=max(_power_of_two(layer.num_heads // layer.num_kv_heads), SMALLEST_BLOCK_M),
            **splits,
            **self._constants(layer),
        )
        self._decode_kernels.combine[(batch.num_decodes, layer.num_heads)](
            out,
            partial,
            sums[0],
            sums[1],
            batch.item_ends,
            _sinks(layer, q),
            layer.window or 0,
            NUM_HEADS=layer.num_heads,
            HEAD_DIM=layer.head_dim,
            HAS_WINDOW=layer.window is not None,
            HAS_SINKS=layer.sinks is not None,
            BLOCK_D=_power_of_two(layer.head_dim),
            **splits,
        )

    def _prefill(self, q: Tensor, out: Tensor, layer: LayerAttention) -> None:
        batch = self._batch
        assert batch is not None
        blocks = self._query_blocks(layer)
        self._kernels.prefill[(blocks.items.shape[0], layer.num_kv_heads)](
            q,
            self.pool.keys(layer.index),
            self.pool.values(layer.index),
            out,
            batch.page_table,
            blocks.items,
            blocks.firsts,
            batch.item_rows,
            batch.item_ends,
            batch.cu_query_lens,
            _sinks(layer, q),
            *self._scalars(q, layer),
            HAS_SINKS=layer.sinks is not None,
            BLOCK_M=blocks.block_m,
            **self._constants(layer),
        )

    def _scalars(self, q: Tensor, layer: LayerAttention) -> tuple[float, ...]:
        """Return the arguments from ``scale`` to ``table_row``, which both attention kernels have."""
        assert self._batch is not None
        strides = (q.stride(0), q.stride(1), self._batch.page_table.stride(0))
        return (layer.scale, layer.softcap, layer.window or 0, *strides)

    def _constants(self, layer: LayerAttention) -> dict[str, Any]:
        """Return the compile-time constants that both attention kernels have."""
        return {
            "NUM_KV_HEADS": layer.num_kv_heads,
            "GROUP": layer.num_heads // layer.num_kv_heads,
            "HEAD_DIM": layer.head_dim,
            "PAGE_SIZE": self.pool.page_size,
            "HAS_SOFTCAP": layer.softcap > 0,
            "HAS_WINDOW": layer.window is not None,
            "EXACT": self.pool.dtype == torch.float32,
            "BLOCK_N": block_sizes(layer.head_dim, self.pool.dtype)[1],
            "BLOCK_D": max(_power_of_two(layer.head_dim), 16),
        }

    def _query_blocks(self, layer: LayerAttention) -> _Blocks:
        """Return the query blocks for this layer's head counts, created once per step."""
        group = layer.num_heads // layer.num_kv_heads
        if group not in self._blocks:
            smallest = block_sizes(layer.head_dim, self.pool.dtype)[0]
            self._blocks[group] = self._make_blocks(group, max(_power_of_two(group), smallest))
        return self._blocks[group]

    def _make_blocks(self, group: int, block_m: int) -> _Blocks:
        batch = self._batch
        assert batch is not None
        num_queries = block_m // group  # number of queries per block
        first = batch.num_decodes
        num_blocks = sum(-(-length // num_queries) for length in batch.query_lens[first:])
        counts = (batch.cu_query_lens.diff()[first:] + (num_queries - 1)) // num_queries
        indices = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=num_blocks)
        places = torch.arange(num_blocks, device=counts.device) - (counts.cumsum(0) - counts)[indices]
        return _Blocks((indices + first).int(), (places * num_queries).int(), block_m)


def _sinks(layer: LayerAttention, q: Tensor) -> Tensor:
    """Return the sinks; without sinks, return another tensor, which the kernel does not read."""
    return q if layer.sinks is None else layer.sinks


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()
