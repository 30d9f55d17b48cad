"""Embeddings from hidden states."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def normalized(hidden: Tensor) -> Tensor:
    """Return [n, hidden] states as vectors of length 1 in float32. A state with nan or infinity gives nan."""
    return functional.normalize(hidden.float(), dim=-1)


def as_bytes(vector: Tensor) -> bytes:
    """Return a vector on the host as little-endian float32."""
    return vector.numpy().astype("<f4", copy=False).tobytes()
