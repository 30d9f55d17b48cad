"""The fused layer kernels without a GPU. Run by test_triton_kernels.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ebbtide.model_runner.layers import triton_ops
from ebbtide.model_runner.layers.triton_ops import TritonOps

from .poisoned import full_of_nan

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)
OPS = TritonOps()


def random(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: Tensor, expected: Tensor) -> None:
    """Compare with a float64 reference, within the tolerance of the result's type."""
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    exact = x.double()
    return exact * (exact.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "new_empty", full_of_nan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 96, 576])
def test_norm_with_the_residual_sum(width: int, dtype: torch.dtype) -> None:
    x, added, weight = (random(5, width, dtype=dtype, seed=seed) for seed in (0, 1, 2))
    normed, total = OPS.add_norm(x, added, weight[0], 1e-5)
    close(total, x.double() + added.double())
    close(normed, rms_norm(total, weight[0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_in_a_wider_tensor(dtype: torch.dtype) -> None:
    joined, weight = random(3, 9, 48, dtype=dtype), random(48, dtype=dtype, seed=1)
    heads = joined[:, 2:7]
    close(OPS.norm(heads, weight, 1e-5), rms_norm(heads, weight))
    assert OPS.norm(joined[:0], weight, 1e-5).shape == (0, 9, 48)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "head_dim"), [(5, 64), (3, 80), (70, 32)])
def test_rotary_in_place_in_a_wider_tensor(
    num_heads: int, head_dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_ops, "ROTATED_ELEMENTS", 256)
    joined = random(4, num_heads + 2, head_dim, dtype=dtype)
    angles = torch.linspace(0, 9, 4 * head_dim // 2).view(4, 1, -1)
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    exact = joined[:, :num_heads].double()
    expected = exact * cos.double() + exact.roll(head_dim // 2, -1) * sin.double()
    others = joined[:, num_heads:].clone()
    close(OPS.rotate(joined[:, :num_heads], (cos, sin)), expected)
    assert torch.equal(joined[:, num_heads:], others)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 1100])
def test_silu_of_the_gate_times_the_input(width: int, dtype: torch.dtype) -> None:
    x = random(3, 2 * width, dtype=dtype)
    gate, up = x.double().chunk(2, -1)
    close(OPS.silu_mul(x), gate * gate.sigmoid() * up)
