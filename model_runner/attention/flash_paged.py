"""Paged attention with the flash-attn package. It needs a page size that is a multiple of 256 tokens.

Decode items go to ``flash_attn_with_kvcache``, which splits their contexts, and prefill chunks to
``flash_attn_varlen_func`` with a block table (Dao 2023, "FlashAttention-2"). The code follows the interface of
flash-attn 2.7 and 2.8. It has been tested with the package's Python code and a replacement for its compiled module, but
not yet on a device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ebbtide.config import FLASH_PAGE_SIZE
from ebbtide.errors import StartupError

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool
from . import AttentionBackend, LayerAttention

HEAD_MULTIPLE, LARGEST_HEAD = 8, 256
PAGE_MULTIPLE = FLASH_PAGE_SIZE


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """See ``BackendModule``."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if find_spec("flash_attn") is None or find_spec("flash_attn_2_cuda") is None:
        return "it needs the package flash-attn with its compiled module"
    if dtype == torch.float32:
        return "it does not support float32"
    return None


def build(pool: KVPool) -> AttentionBackend:
    """Create the backend over ``pool``.

    Raises StartupError if the size of a page or of a head is not supported.
    """
    if pool.page_size % PAGE_MULTIPLE:
        raise StartupError(
            f"The attention backend flash_attn needs a --page-size that is a multiple of {PAGE_MULTIPLE}, "
            f"not {pool.page_size}."
        )
    head_dim = pool.shape.head_dim
    if head_dim % HEAD_MULTIPLE or head_dim > LARGEST_HEAD:
        raise StartupError(
            f"The attention backend flash_attn does not support heads of size {head_dim}; choose triton."
        )
    return FlashAttention(pool)


class FlashAttention:
    """Computes all decode items of a step with one call of flash-attn, and all prefill chunks with another."""

    def __init__(self, pool: KVPool) -> None:
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

        self._attend_decodes, self._attend_chunks = flash_attn_with_kvcache, flash_attn_varlen_func
        self.pool = pool
        self._slots = torch.empty(0, dtype=torch.int64)
        self._num_decodes = 0
        self._decodes: dict[str, Any] | None = None
        self._chunks: dict[str, Any] | None = None

    @property
    def pools(self) -> tuple[KVPool, ...]:
        """See ``AttentionBackend``."""
        return (self.pool,)

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare the lengths, and the page-table rows of the items."""
        self._slots = batch.slots
        count = self._num_decodes = batch.num_decodes
        table = batch.page_table[batch.item_rows]
        self._decodes = self._chunks = None
        if count:
            self._decodes = {"cache_seqlens": batch.item_ends[:count].int(), "block_table": table[:count]}
        if count < len(batch.query_lens):
            ends = [
                start + length for start, length in zip(batch.starts[count:], batch.query_lens[count:], strict=True)
            ]
            self._chunks = {
                "cu_seqlens_q": batch.cu_query_lens[count:] - count,
                "cu_seqlens_k": pad(batch.item_ends[count:].cumsum(0, dtype=torch.int32), (1, 0)),
                "max_seqlen_q": max(batch.query_lens[count:]),
                "max_seqlen_k": max(ends),
                "block_table": table[count:],
            }

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``. Raises StartupError for a layer with sinks."""
        if layer.sinks is not None:
            raise StartupError("The attention backend flash_attn does not support attention sinks; choose triton.")
        self.pool.write(layer.index, self._slots, k, v)
        paged = (-1, self.pool.page_size, layer.num_kv_heads, layer.head_dim)
        keys, values = self.pool.keys(layer.index).view(paged), self.pool.values(layer.index).view(paged)
        options = {
            "softmax_scale": layer.scale,
            "causal": True,
            "window_size": (-1, -1) if layer.window is None else (layer.window - 1, 0),
            "softcap": layer.softcap,
        }
        parts: list[Tensor] = []
        if self._decodes is not None:
            queries = q[: self._num_decodes, None]
            parts.append(self._attend_decodes(queries, keys, values, **self._decodes, **options)[:, 0])
        if self._chunks is not None:
            parts.append(self._attend_chunks(q[self._num_decodes :], keys, values, **self._chunks, **options))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
