"""Chooses the context length and the size of the KV pool at start."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError

from .checkpoint.weights import Checkpoint
from .context import longest_context
from .kv.kv_pool import KVPool
from .kv.memory import PoolBudget, pool_limit
from .models.model import Model
from .tensor_parallel.group import Group


def choose_context_length(checkpoint: Checkpoint, asked: int | None) -> int:
    """Return ``asked``, or the model's maximum context length if it is None. Raises StartupError if out of range."""
    longest = longest_context(checkpoint.config)
    if asked is None:
        return longest
    if not 1 <= asked <= longest:
        raise StartupError(f"--context-length {asked} is not within the model's range of 1 to {longest} tokens.")
    return asked


@dataclass(frozen=True, slots=True)
class PoolPlace:
    """Where the KV pool is allocated, and the element type.

    Attributes:
        free_bytes: as in ``PoolBudget``.
        group: the tensor-parallel ranks, whose pools have equal numbers of pages; None for one process.
    """

    dtype: torch.dtype
    device: torch.device
    free_bytes: int
    group: Group | None


def build_pool(model: Model, config: RunnerConfig, num_padding_pages: int, place: PoolPlace) -> KVPool:
    """Allocate the KV pool. num_padding_pages: number of extra pages at its end, for padding rows of decode graphs."""
    budget = PoolBudget(
        free_bytes=place.free_bytes,
        weight_bytes=model.weight_bytes,
        fraction=config.mem_fraction_static,
        token_bytes=model.kv_shape.token_bytes(place.dtype),
        page_size=config.tokens_per_page,
        limit_bytes=pool_limit(place.device, num_ranks=config.tp),
        max_total_tokens=config.max_total_tokens,
    )
    num_pages = budget.num_pages()
    if place.group is not None:
        num_pages = place.group.minimum(num_pages, place.device)
    num_pages += num_padding_pages
    return KVPool(model.kv_shape, num_pages, config.tokens_per_page, dtype=place.dtype, device=place.device)
