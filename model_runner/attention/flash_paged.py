"""Paged attention with the flash-attn package. It needs a page size that is a multiple of 256 tokens.

The code follows the documented interface of flash-attn 2.7 (``flash_attn_varlen_func`` with a block table; Dao 2023,
"FlashAttention-2") and has not been run on a device yet. Its tests are in tests/gpu.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import pad

from ebbtide.errors import StartupError

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool
from . import AttentionBackend, LayerAttention

PAGE_MULTIPLE = 256


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """See ``BackendModule``."""
    if device.type != "cuda":
        return "it needs a CUDA device"
    if find_spec("flash_attn") is None:
        return "it needs the package flash-attn"
    if dtype == torch.float32:
        return "it does not support float32"
    return None


def build(pool: KVPool) -> AttentionBackend:
    """Create the backend over ``pool``.

    Raises StartupError if the page size is not a multiple of ``PAGE_MULTIPLE``.
    """
    if pool.page_size % PAGE_MULTIPLE:
        raise StartupError(
            f"The attention backend flash_attn needs a --page-size that is a multiple of {PAGE_MULTIPLE}, "
            f"not {pool.page_size}."
        )
    return FlashAttention(pool)


class FlashAttention:
    """Computes all items of a step with one call of flash-attn. A decode item has one query."""

    def __init__(self, pool: KVPool) -> None:
        from flash_attn import flash_attn_varlen_func

        self._attend = flash_attn_varlen_func
        self.pool = pool
        self._slots = torch.empty(0, dtype=torch.int64)
        self._shared: dict[str, Tensor | int] = {}

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare the cumulative lengths, and the page-table rows of the items."""
        ends = [start + count for start, count in zip(batch.starts, batch.query_lens, strict=True)]
        self._slots = batch.slots
        self._shared = {
            "cu_seqlens_q": batch.cu_query_lens,
            "cu_seqlens_k": pad(batch.item_ends.cumsum(0, dtype=torch.int32), (1, 0)),
            "max_seqlen_q": max(batch.query_lens),
            "max_seqlen_k": max(ends),
            "block_table": batch.page_table[batch.item_rows],
        }

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``. Raises StartupError for a layer with sinks."""
        if layer.sinks is not None:
            raise StartupError("The attention backend flash_attn does not support attention sinks; choose triton.")
        self.pool.write(layer.index, self._slots, k, v)
        paged = (-1, self.pool.page_size, layer.num_kv_heads, layer.head_dim)
        out: Tensor = self._attend(
            q,
            self.pool.keys(layer.index).view(paged),
            self.pool.values(layer.index).view(paged),
            softmax_scale=layer.scale,
            causal=True,
            window_size=(-1, -1) if layer.window is None else (layer.window - 1, 0),
            softcap=layer.softcap,
            **self._shared,
        )
        return out
