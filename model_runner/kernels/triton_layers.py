"""Triton kernels of a decoder layer: RMSNorm with the residual sum, rotary embedding, and SiLU of a gate times its
input. All compute in float32 and round once.
"""

# ruff: noqa: PLR0913, PLR0917 - a kernel takes everything as arguments
import triton
import triton.language as tl


def _norm(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    x,
    added,
    weight,
    normed,
    total,
    row_stride,
    head_stride,
    eps,
    WIDTH: tl.constexpr,
    HAS_SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program normalizes one vector of x [rows, heads, WIDTH] → normed [rows, heads, WIDTH].

    HAS_SUM: first add ``added``, [rows, heads, WIDTH], and store the sum in ``total``.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    out = (row * tl.num_programs(1) + head) * WIDTH + at
    values = tl.load(x + row * row_stride + head * head_stride + at, mask=inside, other=0.0)
    if HAS_SUM:
        values = (values.to(tl.float32) + tl.load(added + out, mask=inside, other=0.0).to(tl.float32)).to(values.dtype)
        tl.store(total + out, values, mask=inside)
    exact = values.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(exact * exact, 0) / WIDTH + eps)
    result = exact * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + out, result.to(normed.dtype.element_ty), mask=inside)


def _rotate(  # type: ignore[no-untyped-def]  # Triton values have no Python types
    x,
    cos,
    sin,
    row_stride,
    head_stride,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """A program rotates BLOCK_H heads of one token in place. cos, sin: [T, HEAD_DIM], the first half of sin negated."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    dim = tl.arange(0, BLOCK_D)
    half = HEAD_DIM // 2
    inside = dim < half
    low = token * HEAD_DIM + dim
    cos_low = tl.load(cos + low, mask=inside, other=0.0).to(tl.float32)
    cos_high = tl.load(cos + low + half, mask=inside, other=0.0).to(tl.float32)
    sin_low = tl.load(sin + low, mask=inside, other=0.0).to(tl.float32)
    sin_high = tl.load(sin + low + half, mask=inside, other=0.0).to(tl.float32)
    at = x + token * row_stride + head[:, None] * head_stride + dim[None, :]
    mask = (head < num_heads)[:, None] & inside[None, :]
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + half, mask=mask, other=0.0).to(tl.float32)
    kind = x.dtype.element_ty
    tl.store(at, (first * cos_low[None, :] + second * sin_low[None, :]).to(kind), mask=mask)
    tl.store(at + half, (second * cos_high[None, :] + first * sin_high[None, :]).to(kind), mask=mask)


def _silu_mul(x, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton values have no Python types
    """A program computes a block of one row: x [T, 2 * width], gates and inputs → out [T, width]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(x + row * 2 * width + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * value
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=inside)


norm = triton.jit(_norm)
rotate = triton.jit(_rotate)
silu_mul = triton.jit(_silu_mul)
