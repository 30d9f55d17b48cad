"""What routers outside are told of the prefix tree: blocks stored, removed, all cleared. Knows pages, no socket.

A block is a page of the tree. The shapes are the ones that routers read from vLLM and SGLang: arrays with the event's
name first. docs/kv-events.md describes them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

import msgspec

from ebbtide.errors import InvariantViolation

from ..memory.node import Node

MEDIUM = "GPU"  # the routers' word for the memory that the model computes from, whatever the device is
POSITIVE = 2**63 - 1  # hashes keep to what a signed and an unsigned reader both take


class KVCacheEvent(msgspec.Struct, array_like=True, tag=True, frozen=True, gc=False):
    """On the wire: [name, fields …]."""


class BlockStored(KVCacheEvent, frozen=True):
    """Consecutive blocks of ``block_size`` tokens each. parent_block_hash: the block before; None for a first one."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str = MEDIUM


class BlockRemoved(KVCacheEvent, frozen=True):
    """These blocks are not cached any more."""

    block_hashes: list[int]
    medium: str = MEDIUM


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """Nothing is cached; what is stored again follows."""


class EventBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The events of one step, in order. ts: seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def first_parent(namespace: str) -> int:
    """What stands in for the parent of a namespace's first blocks, so that equal tokens hash differently in each."""
    return _number(namespace.encode())


def block_hash(parent: int, token_ids: Sequence[int]) -> int:
    """The name of a block: its own tokens and, through ``parent``, all those before it. The same in every process."""
    return _number(struct.pack(f">q{len(token_ids)}I", parent, *token_ids))


class BlockRecorder:
    """A ``CacheObserver`` that keeps what happened since the last ``take``. One hash a page: splits change none."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._hashes: dict[int, int] = {}  # page in the tree -> its block's hash
        # A subscriber may remember an earlier process that had this address.
        self._events: list[BlockStored | BlockRemoved | AllBlocksCleared] = [AllBlocksCleared()]

    def stored(self, node: Node) -> None:
        """See ``CacheObserver``. Raises InvariantViolation when the parent was never stored."""
        assert node.parent is not None
        parent = None if node.parent.is_root else self._known(node.parent.pages[-1])
        last = first_parent(node.namespace) if parent is None else parent
        hashes = []
        for index, page in enumerate(node.pages):
            start = index * self._page_size
            last = block_hash(last, node.tokens[start : start + self._page_size])
            hashes.append(last)
            self._hashes[page] = last
        self._events.append(BlockStored(hashes, parent, list(node.tokens), self._page_size))

    def removed(self, pages: Sequence[int]) -> None:
        """See ``CacheObserver``. Raises InvariantViolation when one of them was never stored."""
        hashes = [self._known(page) for page in pages]
        for page in pages:
            del self._hashes[page]
        self._events.append(BlockRemoved(hashes))

    def rebuilt(self, nodes: Iterable[Node]) -> None:
        """See ``CacheObserver``."""
        self._hashes.clear()
        self._events = [AllBlocksCleared()]
        for node in nodes:
            self.stored(node)

    def take(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _known(self, page: int) -> int:
        if page not in self._hashes:
            raise InvariantViolation(f"page {page} is in the prefix tree and was never told to be")
        return self._hashes[page]


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") & POSITIVE
