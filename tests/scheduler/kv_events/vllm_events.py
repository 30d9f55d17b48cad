"""The fields with which a subscriber of vLLM 0.32 decodes a batch: those without a default are required.

The fields ``kv_cache_spec_…`` are those of vLLM's main branch.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """A map whose "type" is the name of the class."""


class BlockStored(Event):
    """Blocks were added."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    """Blocks were evicted."""

    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    """The cache is empty."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """An array."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None
