"""The compiled forward pass with a KV pool in int8: a float32 scale for each token and KV head follows its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ebbtide.errors import StartupError
from ebbtide.model_runner.attention import cpu_native
from ebbtide.model_runner.kernels.native_build import VECTORS
from ebbtide.model_runner.kv.kv_pool import KVPool, KVShape
from ebbtide.model_runner.models.llama_native import NativeLlama

from ..driver import load_runner
from .small_llama import Conversations, small_llama
from .test_llama_native import (
    CAPABILITIES,
    HAS,
    SIZES,
    VARIANTS,
    answers,
    assert_close,
    assert_same_in_chunks,
    truth,
)

INT8 = torch.int8
INSTRUCTION_SETS = {"native": VECTORS} | VARIANTS
NAMES = ["pages of 1", "head size 64", "head size 80", "head size 128", "one KV head for seven", "window past a block"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", INSTRUCTION_SETS)
def test_logits_are_close_and_equal_in_every_batch(variant: str, name: str) -> None:
    if variant != "native" and not CAPABILITIES.get(HAS[variant]):
        pytest.skip(f"this CPU has no {HAS[variant]}")
    sizes = SIZES[name]
    model = NativeLlama.of(small_llama(sizes), vectors=INSTRUCTION_SETS[variant])
    found = answers(model, sizes, INT8)
    assert_close(found, truth(sizes), factor=1.5)
    for row in (1, 3):
        assert_same_in_chunks(model, sizes, row, found[row], INT8)


def test_stored_rows_are_within_half_a_step_of_those_in_bfloat16() -> None:
    sizes = SIZES["head size 64"]
    model = NativeLlama.of(small_llama(sizes))
    pools = []
    for dtype in (torch.bfloat16, INT8):
        conversations = Conversations(sizes, dtype)
        attention = cpu_native.build(conversations.pool)
        conversations.step(model, attention, [(0, 0, list(range(40)))])
        pools.append(conversations.pool)
    exact = pools[0].data[0].float()  # the first layer does not depend on attention
    written = exact.isfinite().all(-1)
    stored = pools[1].data[0]
    scales = stored[..., sizes.head_dim :].contiguous().view(torch.float32)
    values = stored[..., : sizes.head_dim] * scales
    error = (values - exact).abs()[written]
    assert written.sum() == 2 * 40 * sizes.kv_heads
    assert (error <= scales[written] / 2 + exact[written].abs() / 256).all()
    assert torch.allclose(scales[written][:, 0] * 127, exact[written].abs().amax(-1), rtol=1 / 128)


def test_a_token_takes_a_byte_per_number_and_a_scale_per_head() -> None:
    shape = KVShape(num_layers=30, num_kv_heads=3, head_dim=64)
    assert shape.token_bytes(torch.bfloat16) == 30 * 2 * 3 * 64 * 2
    assert shape.token_bytes(INT8) == 30 * 2 * 3 * 68
    pool = KVPool(shape, 2, 16, dtype=INT8, device=torch.device("cpu"))
    assert pool.num_bytes == 32 * shape.token_bytes(INT8)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float32"}, "the model runs in float32"),
        ({"dtype": "bfloat16", "attention_backend": "torch"}, "the model runs through torch"),
    ],
)
def test_other_code_is_refused(settings: dict[str, str], reason: str, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(
        StartupError, match=f"^--kv-cache-dtype int8 is not supported for llama.* with these settings: {reason}\\. "
    ):
        load_runner(tiny("llama"), kv_cache_dtype="int8", **settings)
