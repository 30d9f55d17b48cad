"""The Triton kernels without a GPU. Run by test_triton_kernels.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from ebbtide.model_runner.attention.triton_paged import build

from ..attention.agreement import CASES, WITH_WINDOW, Step
from .poisoned import full_of_nan

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@pytest.fixture(autouse=True)
def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen bfloat16 operands of ``tl.dot``: Triton's interpreter multiplies their bits as integers."""
    original = InterpreterBuilder.create_dot

    def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
        return original(self, _widened(a), _widened(b), *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def _widened(handle: TensorHandle) -> TensorHandle:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "new_empty", full_of_nan)


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_equal_the_reference_attention(name: str) -> None:
    step = Step(CASES[name], device=CPU)
    torch.testing.assert_close(step.run(build(step.pool)).double(), step.truth(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", WITH_WINDOW)
def test_the_kernels_read_no_page_before_the_window(name: str) -> None:
    step = Step(CASES[name], device=CPU)
    step.forget()
    torch.testing.assert_close(step.run(build(step.pool)).double(), step.truth(), rtol=1e-4, atol=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_shape_and_type_equals_the_reference_attention(
    dtype: torch.dtype, head_dim: int, page_size: int, name: str
) -> None:
    step = Step(replace(CASES[name], head_dim=head_dim, page_size=page_size), device=CPU, dtype=dtype)
    found, tolerance = step.run(build(step.pool)).double(), TOLERANCE[dtype]
    torch.testing.assert_close(found, step.truth(), rtol=tolerance, atol=tolerance)


def test_keys_and_values_land_in_their_slots() -> None:
    step = Step(CASES["page size 16"], device=CPU)
    step.run(build(step.pool))
    assert torch.equal(step.stored(), torch.stack([step.k, step.v]))


def test_an_item_gets_the_same_result_in_every_batch() -> None:
    step = Step(CASES["splits"], device=CPU)
    together = step.run(build(step.pool))
    alone = step.alone(0)
    assert torch.equal(alone.run(build(alone.pool)), together[:1])


def test_inputs_may_be_views_with_gaps() -> None:
    step = Step(CASES["page size 16"], device=CPU)
    expected = step.run(build(step.pool))
    joined = torch.cat([step.q, step.k, step.v], dim=1)
    step.q, step.k, step.v = torch.split(joined, [4, 2, 2], dim=1)
    assert torch.equal(step.run(build(step.pool)), expected)
