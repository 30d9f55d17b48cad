"""Compiles the Triton kernels, which needs no GPU. Run by test_triton_kernels.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ebbtide.model_runner.attention.triton_paged import LEAST_SPLIT, MAX_SPLITS, block_sizes
from ebbtide.model_runner.kernels import triton_attention, triton_decode, triton_layers, triton_sampling

SHARED_BYTES = 99 * 1024
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
TYPES = {
    "*i32": "page_table block_items block_firsts item_offsets",
    "*i64": "item_rows item_ends slots tokens limits num_sampled",
    "*fp32": "partial partial_max partial_sum sinks temperatures shares least",
    "*fp64": "uniforms",
    "fp32": "scale softcap eps",
    "i32": "window q_token q_head table_row k_token k_head v_token v_head row_stride head_stride num_heads width",
}
EVERYTHING = {"HAS_SOFTCAP": True, "HAS_WINDOW": True}
SIZES = {"NUM_KV_HEADS": 2, "GROUP": 4, "PAGE_SIZE": 16}
SPLITS = {"MAX_SPLITS": MAX_SPLITS, "LEAST_SPLIT": LEAST_SPLIT}
CAPABILITIES = [80, 90, 100]
# These cases are compiled in every test run; the others have the mark soak.
QUICK = {(torch.bfloat16, 128, 90), (torch.float32, 256, 80)}
SHAPES = [
    pytest.param(dtype, head_dim, capability, marks=[] if (dtype, head_dim, capability) in QUICK else pytest.mark.soak)
    for dtype in POINTERS
    for head_dim in (64, 128, 256, 512)
    for capability in CAPABILITIES
]


def compiled(kernel: Any, dtype: torch.dtype, constants: dict[str, Any], capability: int = 80) -> Any:
    """The kernel for a CUDA device of this compute capability."""
    types = {name: kind for kind, names in TYPES.items() for name in names.split()}
    signature = {
        name: "constexpr" if name in constants else types.get(name, POINTERS[dtype]) for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", capability, 32))


@pytest.mark.parametrize(("dtype", "head_dim", "capability"), SHAPES)
def test_attention_compiles_into_shared_memory(dtype: torch.dtype, head_dim: int, capability: int) -> None:
    block_m, block_n = block_sizes(head_dim, dtype)
    blocks = {"BLOCK_N": block_n, "BLOCK_D": head_dim, "HEAD_DIM": head_dim, "EXACT": dtype == torch.float32}
    constants = EVERYTHING | SIZES | blocks
    prefill = compiled(triton_attention.prefill, dtype, constants | {"BLOCK_M": block_m, "HAS_SINKS": True}, capability)
    decode = compiled(triton_decode.decode, dtype, constants | SPLITS | {"BLOCK_M": 16}, capability)
    assert max(prefill.metadata.shared, decode.metadata.shared) <= SHARED_BYTES


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "combine": (
        triton_decode.combine,
        SPLITS | {"NUM_HEADS": 8, "HEAD_DIM": 80, "HAS_WINDOW": True, "HAS_SINKS": True, "BLOCK_D": 128},
    ),
    "write_kv": (triton_attention.write_kv, {"NUM_HEADS": 3, "HEAD_DIM": 80, "BLOCK": 256}),
    "norm": (triton_layers.norm, {"WIDTH": 4096, "HAS_SUM": True, "BLOCK": 4096}),
    "rotate": (triton_layers.rotate, {"HEAD_DIM": 128, "BLOCK_H": 32, "BLOCK_D": 64}),
    "silu_mul": (triton_layers.silu_mul, {"BLOCK": 1024}),
    "sample": (triton_sampling.sample, {"INVALID": -2, "BLOCK": 4096}),
}


@pytest.mark.parametrize("capability", [80, *(pytest.param(each, marks=pytest.mark.soak) for each in (90, 100))])
@pytest.mark.parametrize("name", OTHERS)
def test_the_other_kernels_compile(name: str, capability: int) -> None:
    kernel, constants = OTHERS[name]
    compiled(kernel, torch.bfloat16, constants, capability)
