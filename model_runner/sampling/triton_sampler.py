"""Sampling on CUDA with the Triton kernel, which does not sort. See kernels/triton_sampling.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import triton_sampling
from .row_draws import RowDraws
from .sampler import INVALID_LOGITS
from .top_p_top_k import DrawInputs

BLOCK = 4096  # ids that a program holds at a time
NUM_WARPS = 8


def sample_rows_with_triton(logits: Tensor, draws: RowDraws, *, block: int = BLOCK) -> Tensor:
    """Do what ``row_draws.sample_rows`` does, in one launch."""
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    kernels: Any = triton_sampling
    parameters = (draws.temperatures, draws.uniforms, draws.limits, draws.shares, draws.least, draws.num_ids)
    kernels.sample[(len(logits),)](
        logits, tokens, *parameters, logits.stride(0), INVALID=INVALID_LOGITS, BLOCK=block, num_warps=NUM_WARPS
    )
    return tokens


def draw_with_triton(logits: Tensor, inputs: DrawInputs) -> Tensor:
    """Do what ``top_p_top_k.draw_tokens`` does. Rows with invalid logits give an id that the caller replaces."""
    num_rows, vocab_size = logits.shape
    options: dict[str, Any] = {"device": logits.device}
    limits, shares = torch.full((num_rows,), vocab_size, **options), torch.ones(num_rows, **options)
    if inputs.top is not None:
        limits[inputs.top.which], shares[inputs.top.which] = inputs.top.limits, inputs.top.shares
    least = torch.zeros(num_rows, **options)
    if inputs.min_p is not None:
        least[inputs.min_p.which] = inputs.min_p.shares
    num_ids = torch.full((1,), vocab_size, **options)
    draws = RowDraws(inputs.temperatures, inputs.uniforms, limits, shares, least, num_ids)
    return sample_rows_with_triton(logits, draws).clamp(min=0)
