from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ebbtide.model_runner.attention import choose_backend

from ..model_runner.attention.agreement import CASES, Step

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def build(backend: str, dtype: torch.dtype, step: Step) -> Any:
    _, module = choose_backend(backend, CUDA, dtype)
    return module.build(step.pool)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_backend_equals_the_reference_attention(backend: str, dtype: torch.dtype, name: str) -> None:
    step = Step(CASES[name], device=CUDA, dtype=dtype)
    found = step.run(build(backend, dtype, step)).cpu().double()
    torch.testing.assert_close(found, step.truth(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_triton_has_every_usual_head_size(dtype: torch.dtype, head_dim: int) -> None:
    step = Step(replace(CASES["page size 16"], head_dim=head_dim), device=CUDA, dtype=dtype)
    found = step.run(build("triton", dtype, step)).cpu().double()
    torch.testing.assert_close(found, step.truth(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_triton_gives_an_item_the_same_result_in_every_batch() -> None:
    step = Step(CASES["splits"], device=CUDA, dtype=torch.bfloat16)
    together = step.run(build("triton", torch.bfloat16, step))
    alone = step.alone(0)
    assert torch.equal(alone.run(build("triton", torch.bfloat16, alone)), together[:1])


@pytest.mark.parametrize("name", ["page size 16", "softcap", "window", "one KV head for seven", "splits"])
def test_flash_attention_equals_the_reference_attention(name: str) -> None:
    pytest.importorskip("flash_attn")
    case = replace(CASES[name], page_size=256)
    step = Step(case, device=CUDA, dtype=torch.bfloat16)
    found = step.run(build("flash_attn", torch.bfloat16, step)).cpu().double()
    torch.testing.assert_close(found, step.truth(), rtol=3e-2, atol=3e-2)
