"""The sizes that a runner chooses at its start: the context length and the KV pool."""

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
    """Return the requested context length, or the model's. Raises StartupError if the request is out of range."""
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
    """Allocate the pool. num_padding_pages: pages after those of the plans, for the padding rows of the graphs."""
    budget = PoolBudget(
        free_bytes=free_bytes,
        weight_bytes=model.weight_bytes,
        fraction=config.mem_fraction_static,
        token_bytes=model.kv_shape.token_bytes(dtype),
        page_size=config.page_size,
        limit_bytes=pool_limit(device),
        max_total_tokens=config.max_total_tokens,
    )
    return KVPool(model.kv_shape, budget.num_pages() + num_padding_pages, config.page_size, dtype=dtype, device=device)
