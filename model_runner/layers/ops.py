"""The operations between the linear layers of a decoder: as calls of torch, or as fused Triton kernels on CUDA."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from .rotary import rotate


class LayerOps(Protocol):
    """The operations. An operation leaves its inputs unchanged unless it says otherwise."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the RMSNorm of the last dimension, in the type of ``x``. The weight may be in float32."""

    def add_norm(self, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the RMSNorm of ``x + added``, and the sum."""

    def rotate(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Return the rotated heads, [T, heads, head_dim]; see ``rotary.rotate``. May change ``x``."""

    def silu_mul(self, x: Tensor) -> Tensor:
        """Return ``silu(gate) * up`` of x = [gate, up], [T, 2 * width]."""


class TorchOps:
    """``LayerOps`` with torch on any device."""

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See ``LayerOps``."""
        if weight.dtype != x.dtype:
            return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)
        return functional.rms_norm(x, weight.shape, weight, eps)

    def add_norm(self, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See ``LayerOps``."""
        total = x + added
        return self.norm(total, weight, eps), total

    def rotate(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """See ``LayerOps``."""
        return rotate(x, table)

    def silu_mul(self, x: Tensor) -> Tensor:
        """See ``LayerOps``."""
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up


def choose_ops(device: torch.device) -> LayerOps:
    """Return the Triton kernels on CUDA if Triton is installed; else torch."""
    if device.type != "cuda" or find_spec("triton") is None:
        return TorchOps()
    from .triton_ops import TritonOps

    return TritonOps()
