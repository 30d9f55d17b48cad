"""Attention on the CPU: a compiled kernel reads the pages of decode items in place; torch handles prefill chunks."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ..batch import ForwardBatch
from ..kernels.native_build import BuildError, load_library
from ..kv.kv_pool import KVPool
from . import AttentionBackend, LayerAttention
from .torch_reference import TorchAttention

SOURCE = Path(__file__).resolve().parent.parent / "kernels" / "decode_attention.cpp"
FUNCTIONS = {torch.float32: "step_float32", torch.bfloat16: "step_bfloat16"}


class Shape(ctypes.Structure):
    """The kernel's parameters, with the same fields as ``Shape`` in its C++ source."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_decodes", "num_heads", "num_kv_heads", "head_dim")),
        *(
            (name, ctypes.c_int64)
            for name in ("page_size", "table_width", "q_stride", "k_stride", "v_stride", "window")
        ),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


PAGE_MULTIPLE = 1


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """See ``BackendModule``. The backend needs a compiler or a kernel that was compiled earlier."""
    if dtype not in FUNCTIONS:
        return f"it has no kernel for {dtype}"
    try:
        load_library(SOURCE)
    except BuildError as error:
        return str(error)
    return None


def build(pool: KVPool) -> AttentionBackend:
    """Create the backend over ``pool``."""
    return PoolOfCompiledModel(pool) if pool.dtype == torch.int8 else CpuAttention(pool)


class PoolOfCompiledModel:
    """Provides a pool in int8 to a compiled model, which computes attention itself."""

    def __init__(self, pool: KVPool) -> None:
        self.pools = (pool,)

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``. The compiled model reads the batch itself."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """Raise NotImplementedError: only compiled models read and write int8."""
        raise NotImplementedError("attention over a KV pool in int8")


class CpuAttention:
    """Computes the attention of decode items without gathering K/V. ``TorchAttention`` computes prefill chunks."""

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self._chunks = TorchAttention(pool)
        self._kernel = load_library(SOURCE)[FUNCTIONS[pool.dtype]]
        self._kernel.restype = None
        self._kernel.argtypes = [ctypes.POINTER(Shape), *[ctypes.c_void_p] * 11]
        self._batch: ForwardBatch | None = None

    @property
    def pools(self) -> tuple[KVPool, ...]:
        """See ``AttentionBackend``."""
        return (self.pool,)

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``. Only prefill chunks need preparation."""
        self._batch = batch
        self._chunks.plan_chunks(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``."""
        batch = self._batch
        assert batch is not None
        out = q.new_empty(q.shape)
        q, k, v = (_dense_heads(x) for x in (q, k, v))
        sinks = None if layer.sinks is None else layer.sinks.float().contiguous()
        pointers = (q, k, v, self.pool.keys(layer.index), self.pool.values(layer.index), batch.slots)
        tables = (batch.page_table, batch.item_rows, batch.positions)
        self._kernel(
            self._shape(batch, q, k, v, layer),
            *(tensor.data_ptr() for tensor in (*pointers, *tables)),
            None if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
        )
        if batch.num_decodes < batch.num_tokens:
            out[batch.num_decodes :] = self._chunks.attend(q, layer)
        return out

    def _shape(self, batch: ForwardBatch, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Shape:
        return Shape(
            batch.num_tokens,
            batch.num_decodes,
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            self.pool.page_size,
            batch.page_table.stride(0),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            layer.window or 0,
            layer.scale,
            layer.softcap,
        )


def _dense_heads(x: Tensor) -> Tensor:
    """Return ``x`` if the heads of each token are contiguous, else a contiguous copy."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
