"""The fields with which a subscriber of SGLang 0.5.23 decodes a batch: those without a default are required."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """A map whose "type" is the name of the class."""


class BlockStored(Event):
    """Blocks were added."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(Event):
    """Blocks were evicted."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(Event):
    """The cache is empty."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """An array."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    attn_dp_rank: int | None = None
