"""Chooses the context length and the size of the KV pool at start."""

from __future__ import annotations

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError

from .checkpoint.weights import Checkpoint
from .context import longest_context
from .kv.kv_pool import KVPool
from .kv.memory import PoolBudget, pool_limit
from .models.model import Model


def choose_context_length(checkpoint: Checkpoint, asked: int | None) -> int:
    """Return ``asked``, or the model's maximum context length if it is None. Raises StartupError if out of range."""
    longest = longest_context(checkpoint.config)
    if asked is None:
        return longest
    if not 1 <= asked <= longest:
        raise StartupError(f"--context-length {asked} is not within the model's range of 1 to {longest} tokens.")
    return asked


def build_pool(
    model: Model,
    config: RunnerConfig,
    num_padding_pages: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    free_bytes: int,
) -> KVPool:
    """Allocate the KV pool. num_padding_pages: number of extra pages at its end, for padding rows of decode graphs."""
    budget = PoolBudget(
        free_bytes=free_bytes,
        weight_bytes=model.weight_bytes,
        fraction=config.mem_fraction_static,
        token_bytes=model.kv_shape.token_bytes(dtype),
        page_size=config.tokens_per_page,
        limit_bytes=pool_limit(device),
        max_total_tokens=config.max_total_tokens,
    )
    return KVPool(
        model.kv_shape, budget.num_pages() + num_padding_pages, config.tokens_per_page, dtype=dtype, device=device
    )
