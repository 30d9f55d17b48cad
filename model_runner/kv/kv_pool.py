"""The K/V memory of layers. The module refers to slots and pages by number and does not know their owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        return self.num_layers * 2 * self.num_kv_heads * self.row_size(dtype) * dtype.itemsize

    def row_size(self, dtype: torch.dtype) -> int:
        """Return the number of elements of one head's K or V. In int8, a float32 scale follows the numbers."""
        return self.head_dim + (torch.float32.itemsize if dtype == torch.int8 else 0)


class KVPool:
    """Stores K and V of ``num_pages`` pages of ``page_size`` tokens, of some or all layers of a model.

    Slot ``page * page_size + i`` holds token ``i`` of ``page``.

    Attributes:
        shape: shape of one token's K/V in this pool.
        data: [layers, 2, slots, kv_heads, row_size]. On the CPU, its memory is allocated when it is first written.
        index_of: layer of the model → its index in ``data``.
    """

    def __init__(
        self,
        shape: KVShape,
        num_pages: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        layers: Sequence[int] | None = None,
    ) -> None:
        """shape: shape of one token's K/V in all layers of the model. layers: the layers of this pool; None for all."""
        layers = range(shape.num_layers) if layers is None else layers
        self.index_of = {layer: index for index, layer in enumerate(layers)}
        self.shape = shape = replace(shape, num_layers=len(layers))
        self.num_pages = num_pages
        self.page_size = page_size
        size = (shape.num_layers, 2, num_pages * page_size, shape.num_kv_heads, shape.row_size(dtype))
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
        """Return K of one layer of the model, a view [slots, kv_heads, head_dim]."""
        return self.data[self.index_of[layer], 0]

    def values(self, layer: int) -> Tensor:
        """Return V of one layer of the model, a view [slots, kv_heads, head_dim]."""
        return self.data[self.index_of[layer], 1]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store K and V of T tokens in one layer of the model. slots: int64 [T]. k, v: [T, kv_heads, head_dim]."""
        self.keys(layer).index_copy_(0, slots, k)
        self.values(layer).index_copy_(0, slots, v)
