"""``LayerOps`` with fused Triton kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton import next_power_of_2

from ..kernels import triton_layers

SILU_BLOCK = 1024
ROTATED_ELEMENTS = 2048  # of a program


class TritonOps:
    """Each operation is one launch. The last dimension of every input must be contiguous."""

    def __init__(self) -> None:
        self._kernels: Any = triton_layers

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See ``LayerOps``. x: [T, width] or [T, heads, width]."""
        normed = x.new_empty(x.shape)
        self._norm(x, None, weight, (normed, normed), eps)
        return normed

    def add_norm(self, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See ``LayerOps``. x, added: [T, width], contiguous."""
        normed, total = x.new_empty(x.shape), x.new_empty(x.shape)
        self._norm(x, added, weight, (normed, total), eps)
        return normed, total

    def rotate(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """See ``LayerOps``. Rotates in place."""
        num_tokens, num_heads, head_dim = x.shape
        block_d = next_power_of_2(head_dim // 2)
        block_h = min(next_power_of_2(num_heads), max(ROTATED_ELEMENTS // block_d, 1))
        if num_tokens:
            self._kernels.rotate[(num_tokens, -(-num_heads // block_h))](
                x,
                *table,
                x.stride(0),
                x.stride(1),
                num_heads,
                HEAD_DIM=head_dim,
                BLOCK_H=block_h,
                BLOCK_D=block_d,
            )
        return x

    def silu_mul(self, x: Tensor) -> Tensor:
        """See ``LayerOps``. x must be contiguous."""
        num_tokens, width = x.shape[0], x.shape[1] // 2
        out = x.new_empty(num_tokens, width)
        if num_tokens:
            self._kernels.silu_mul[(num_tokens, -(-width // SILU_BLOCK))](x, out, width, BLOCK=SILU_BLOCK)
        return out

    def _norm(self, x: Tensor, added: Tensor | None, weight: Tensor, outs: tuple[Tensor, Tensor], eps: float) -> None:
        """Launch the kernel. outs: where to store the normalized values and the sum."""
        num_heads, width = (1, x.shape[1]) if x.dim() == 2 else x.shape[1:]
        if not x.shape[0]:
            return
        self._kernels.norm[(x.shape[0], num_heads)](
            x,
            x if added is None else added,
            weight,
            *outs,
            x.stride(0),
            x.stride(1),
            eps,
            WIDTH=width,
            HAS_SUM=added is not None,
            BLOCK=next_power_of_2(width),
        )
