"""A linear layer whose weight is packed once, after loading, into the fastest layout for its device."""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.nn import functional

log = logging.getLogger(__name__)


class Linear:
    """``x @ weight.T + bias`` with weight [out, in] and x [T, in].

    Call ``pack`` after loading the weight: on the CPU, it replaces the weight by a packed copy.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features = weight.shape[0]
        self._packed: Tensor | None = None

    @classmethod
    def empty(cls, out: int, inner: int, *, bias: bool, dtype: torch.dtype, device: torch.device) -> Linear:
        """Return a layer with uninitialized values."""
        weight = torch.empty(out, inner, dtype=dtype, device=device)
        return cls(weight, torch.empty(out, dtype=dtype, device=device) if bias else None)

    @property
    def num_bytes(self) -> int:
        """Size of the weight in bytes, whether it is packed or not."""
        weight = self.weight if self._packed is None else self._packed
        return self.out_features * self.in_features * weight.dtype.itemsize

    @property
    def in_features(self) -> int:
        """The width of the input."""
        return self.weight.shape[1]

    def pack(self) -> None:
        """On the CPU, replace a bfloat16 weight by a copy in oneDNN's layout if the CPU supports this."""
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.bfloat16 or not torch.backends.mkldnn.enabled:
            return
        try:
            packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, None)
            self._multiply_packed(self.weight.new_zeros(1, self.in_features), packed)
        except RuntimeError as error:  # without AVX-512, oneDNN has no bfloat16 kernels, and PyTorch's are used
            log.debug("weights are not packed: %s", error)
            return
        self._packed = packed
        self.release()

    def release(self) -> None:
        """Free the memory of the unpacked weight."""
        self.weight = self.weight.new_empty(0, self.in_features)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layer: [T, in] → [T, out]."""
        if self._packed is None:
            return functional.linear(x, self.weight, self.bias)
        return self._multiply_packed(x, self._packed)

    def _multiply_packed(self, x: Tensor, packed: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, "none", [], "")
        return out
