"""KV cache events for external routers: blocks stored, blocks removed, all blocks cleared. The module uses no sockets.

A block is a page of the prefix tree. The wire format is that of vLLM and SGLang: a batch is an array of a
timestamp and a list of events; an event is a map whose "type" is the name of the event. See docs/kv-events.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ebbtide.errors import InvariantViolation
from ebbtide.messages import PoolInfo

from ..memory.node import Node

MEDIUM = "GPU"  # routers use this name for the memory of the compute device, even if the device is a CPU
FULL_KIND, WINDOW_KIND = "full_attention", "sliding_window"  # vLLM's names for the kinds of groups
POSITIVE = 2**63 - 1  # keeps a hash within the range of both signed and unsigned 64-bit integers


class KVCacheEvent(msgspec.Struct, tag=True, frozen=True, gc=False):
    """An event. It is encoded as a map that contains "type" and the fields."""


class BlockStored(KVCacheEvent, frozen=True):
    """Consecutive blocks were added to the cache."""

    block_hashes: list[int]
    parent_block_hash: int | None  # hash of the preceding block; None at the start of a prompt
    token_ids: list[int]
    block_size: int  # tokens per block
    lora_id: int | None = (
        None  # this and the next two fields are there because routers require them; ebbtide has no LoRA adapters
    )
    medium: str = MEDIUM
    lora_name: str | None = None


class GroupBlockStored(BlockStored, frozen=True, tag="BlockStored"):
    """The event of one group of layers, if the model has several KV pools. Each group stores its own blocks."""

    group_idx: int = 0  # index of the pool; 0 for the layers with full attention
    kv_cache_spec_kind: str = FULL_KIND
    kv_cache_spec_sliding_window: int | None = None  # tokens


class BlockRemoved(KVCacheEvent, frozen=True):
    """These blocks are no longer cached."""

    block_hashes: list[int]
    medium: str = MEDIUM


class GroupBlockRemoved(BlockRemoved, frozen=True, tag="BlockRemoved"):
    """The event of one group of layers."""

    group_idx: int = 0


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """Subscribers must discard all blocks. BlockStored events for the blocks that are still cached follow."""


class EventBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The events of one step, in order."""

    ts: float  # seconds since 1970
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def namespace_hash(namespace: str) -> int:
    """Return the parent hash for the first block of a prompt.

    It differs between namespaces, so equal tokens get different hashes in different namespaces.
    """
    return _number(namespace.encode())


def block_hash(parent: int, token_ids: Sequence[int]) -> int:
    """Return the hash of a block's tokens and, through ``parent``, of all tokens before it.

    The result is the same in every process.
    """
    return _number(struct.pack(f">q{len(token_ids)}I", parent, *token_ids))


class BlockRecorder:
    """A ``CacheObserver`` that collects events.

    It keeps one hash per page, so that splitting a node changes no hash. Events name their group only if there is
    another pool, which ``window`` announces.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._names_group = False
        self._hashes: dict[int, int] = {}  # page in the tree → hash of its block
        # The first event is AllBlocksCleared, because a subscriber may hold the state of an earlier process at this
        # address.
        self._events: list[BlockStored | BlockRemoved | AllBlocksCleared] = [AllBlocksCleared()]

    def stored(self, node: Node) -> None:
        """See ``CacheObserver``. Raises InvariantViolation if the parent block was never stored."""
        assert node.parent is not None
        parent = None if node.parent.is_root else self._hash_of(node.parent.pages[-1])
        last = namespace_hash(node.namespace) if parent is None else parent
        hashes = []
        for index, page in enumerate(node.pages):
            start = index * self._page_size
            last = block_hash(last, node.tokens[start : start + self._page_size])
            hashes.append(last)
            self._hashes[page] = last
        stored = GroupBlockStored if self._names_group else BlockStored
        self._events.append(stored(hashes, parent, list(node.tokens), self._page_size))

    def removed(self, pages: Sequence[int]) -> None:
        """See ``CacheObserver``. Raises InvariantViolation if one of the pages was never stored."""
        hashes = self.hashes_of(pages)
        for page in pages:
            del self._hashes[page]
        removed = GroupBlockRemoved if self._names_group else BlockRemoved
        self._events.append(removed(hashes))

    def window(self, pool: PoolInfo, number: int) -> WindowRecorder:
        """See ``CacheObserver``."""
        self._names_group = True
        return WindowRecorder(self, pool, number)

    def window_stored(self, node: Node, first: int, end: int, *, pool: PoolInfo, number: int) -> None:
        """Add an event for the window's pages of some pages of a node, which are stored in the first pool."""
        assert node.parent is not None
        before = node.pages[first - 1 : first] if first else node.parent.pages[-1:]
        self._events.append(
            GroupBlockStored(
                self.hashes_of(node.pages[first:end]),
                self._hash_of(before[0]) if before else None,
                node.tokens[first * self._page_size : end * self._page_size],
                self._page_size,
                group_idx=number,
                kv_cache_spec_kind=WINDOW_KIND,
                kv_cache_spec_sliding_window=pool.window,
            )
        )

    def window_removed(self, node: Node, first: int, end: int, number: int) -> None:
        """Add an event for the removal of the window's pages of some pages of a node."""
        self._events.append(GroupBlockRemoved(self.hashes_of(node.pages[first:end]), group_idx=number))

    def hashes_of(self, pages: Sequence[int]) -> list[int]:
        """Return the hashes of pages of the first pool."""
        return [self._hash_of(page) for page in pages]

    def rebuilt(self, nodes: Iterable[Node]) -> None:
        """See ``CacheObserver``."""
        self._hashes.clear()
        self._events = [AllBlocksCleared()]
        for node in nodes:
            self.stored(node)

    def drain(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """Remove and return the events collected since the last call, in order."""
        events, self._events = self._events, []
        return events

    def _hash_of(self, page: int) -> int:
        if page not in self._hashes:
            raise InvariantViolation(f"page {page} of the prefix tree was never reported as stored")
        return self._hashes[page]


@dataclass(frozen=True, slots=True)
class WindowRecorder:
    """A ``WindowObserver`` that adds events to a ``BlockRecorder``.

    Attributes:
        number: index of ``pool`` in ``RunnerInfo.pools``.
    """

    recorder: BlockRecorder
    pool: PoolInfo
    number: int

    def stored(self, node: Node, first: int, end: int) -> None:
        """See ``WindowObserver``."""
        self.recorder.window_stored(node, first, end, pool=self.pool, number=self.number)

    def removed(self, node: Node, first: int, end: int) -> None:
        """See ``WindowObserver``."""
        self.recorder.window_removed(node, first, end, self.number)


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") & POSITIVE
