"""The K/V memory of all layers. The module refers to slots and pages by number and does not know their owners."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .lazy_memory import lazy_zeros


@dataclass(frozen=True, slots=True)
class KVShape:
    """The shape of one token's K/V: K and V, each [num_layers, num_kv_heads, head_dim]."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Return the number of bytes of one token's K and V, over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * dtype.itemsize


class KVPool:
    """Stores K and V of ``num_pages`` pages of ``page_size`` tokens.

    Slot ``page * page_size + i`` holds token ``i`` of ``page``.

    Attributes:
        data: [layers, 2, slots, kv_heads, head_dim]. On the CPU, its memory is allocated when it is first written.
    """

    def __init__(
        self, shape: KVShape, num_pages: int, page_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_pages = num_pages
        self.page_size = page_size
        size = (shape.num_layers, 2, num_pages * page_size, shape.num_kv_heads, shape.head_dim)
        on_cpu = device.type == "cpu"
        self.data = lazy_zeros(size, dtype) if on_cpu else torch.zeros(size, dtype=dtype, device=device)

    @property
    def dtype(self) -> torch.dtype:
        """Element type of K and V."""
        return self.data.dtype

    @property
    def device(self) -> torch.device:
        """The device that holds the pool."""
        return self.data.device

    @property
    def num_bytes(self) -> int:
        """Size of the pool in bytes."""
        return self.data.nbytes

    def keys(self, layer: int) -> Tensor:
        """Return K of one layer, a view [slots, kv_heads, head_dim]."""
        return self.data[layer, 0]

    def values(self, layer: int) -> Tensor:
        """Return V of one layer, a view [slots, kv_heads, head_dim]."""
        return self.data[layer, 1]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K and V of T tokens. slots: int64 [T]. k, v: [T, kv_heads, head_dim]."""
        self.data[layer, 0].index_copy_(0, slots, k)
        self.data[layer, 1].index_copy_(0, slots, v)
