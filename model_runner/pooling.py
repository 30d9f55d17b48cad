"""Converts hidden states to embeddings."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def normalized(hidden: Tensor) -> Tensor:
    """Return states, [n, hidden], as float32 vectors of length 1. A state with NaN or infinity becomes NaN."""
    return functional.normalize(hidden.float(), dim=-1)


def as_bytes(vector: Tensor) -> bytes:
    """Return the little-endian float32 bytes of a vector, which must be on the host."""
    return vector.numpy().astype("<f4", copy=False).tobytes()
