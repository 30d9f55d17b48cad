"""Compiles the Triton kernels, which needs no GPU. Run by test_triton_paged.py in a separate process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ebbtide.model_runner.attention.triton_paged import SPLIT_TOKENS, block_sizes
from ebbtide.model_runner.kernels import triton_attention

SHARED_BYTES = 99 * 1024
POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
TYPES = {
    "*i32": "page_table block_items block_firsts item_offsets item_lens",
    "*i64": "item_rows item_ends slots",
    "*fp32": "partial partial_max partial_sum sinks",
    "fp32": "scale softcap",
    "i32": "window q_token q_head table_row num_splits k_token k_head v_token v_head",
}
EVERYTHING = {"HAS_SOFTCAP": True, "HAS_WINDOW": True, "HAS_SINKS": True}
SIZES = {"NUM_KV_HEADS": 2, "GROUP": 4, "PAGE_SIZE": 16}


def compiled(kernel: Any, dtype: torch.dtype, constants: dict[str, Any], capability: int = 80) -> Any:
    """The kernel for a CUDA device of this compute capability."""
    types = {name: kind for kind, names in TYPES.items() for name in names.split()}
    signature = {
        name: "constexpr" if name in constants else types.get(name, POINTERS[dtype]) for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", capability, 32))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "split", "capability"),
    [
        (torch.bfloat16, 128, 0, 90),
        (torch.bfloat16, 512, 0, 80),
        (torch.float32, 256, 0, 80),
        (torch.bfloat16, 128, SPLIT_TOKENS, 90),
        (torch.float32, 256, SPLIT_TOKENS, 80),
    ],
)
def test_attention_compiles_into_shared_memory(dtype: torch.dtype, head_dim: int, split: int, capability: int) -> None:
    block_m, block_n = block_sizes(head_dim, dtype)
    blocks = {"BLOCK_M": 16 if split else block_m, "BLOCK_N": block_n, "BLOCK_D": head_dim, "HEAD_DIM": head_dim}
    constants = EVERYTHING | SIZES | blocks | {"SPLIT_TOKENS": split, "EXACT": dtype == torch.float32}
    kernel = compiled(triton_attention.attend, dtype, constants, capability)
    assert kernel.metadata.shared <= SHARED_BYTES


def test_the_other_kernels_compile() -> None:
    constants = {"NUM_HEADS": 8, "HEAD_DIM": 80, "SPLIT_TOKENS": SPLIT_TOKENS, "HAS_SINKS": True, "BLOCK_D": 128}
    compiled(triton_attention.combine, torch.bfloat16, constants)
    compiled(triton_attention.write_kv, torch.bfloat16, {"NUM_HEADS": 3, "HEAD_DIM": 80, "BLOCK": 256})
