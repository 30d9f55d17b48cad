"""The states that the prefix tree keeps: each is the state after the last token of one node."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..allocator import PageAllocator
from ..audit_rotation import AuditRotation
from ..ledger import PageOwner
from ..lru_heap import LruHeap
from ..node import Node, PathElement
from ..tree_part import MatchPath


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The state after the last token of ``node``. pages: its slot; empty once it was evicted."""

    node: PathElement
    pages: list[int]
    last_access: int = 0
    is_locked: ClassVar[bool] = False
    is_tree_node: ClassVar[bool] = True

    @property
    def tag(self) -> str:
        """The checkpoint's name in messages."""
        return f"the state after {self.node.tag}"


class Checkpoints:
    """All checkpoints of a pool. They are never locked: a request copies the state in its first step."""

    def __init__(self, allocator: PageAllocator) -> None:
        self.access_clock = 0  # that of the tree at the last release
        self._allocator = allocator
        self._by_node: dict[PathElement, Checkpoint] = {}
        self._rotation: AuditRotation[Checkpoint] = AuditRotation()
        self._order: LruHeap[Checkpoint] = LruHeap(lambda checkpoint: bool(checkpoint.pages))

    def __len__(self) -> int:
        return len(self._by_node)

    def usable_match(self, path: MatchPath) -> int:
        """See ``TreePart``: a match ends at the deepest node that has a checkpoint, or before the first token."""
        usable = end = 0
        for node, same in path:
            end += same
            if same == len(node.pages) and node in self._by_node:
                usable = end
        return usable

    def slot_of(self, node: PathElement) -> int:
        """Return the slot of the node's checkpoint, and record the access; -1 if it has none."""
        checkpoint = self._by_node.get(node)
        if checkpoint is None:
            return -1
        self._touch(checkpoint)
        return checkpoint.pages[0]

    def add(self, node: PathElement, slot: int, owner: PageOwner) -> bool:
        """Move a slot of ``owner`` to a new checkpoint. Returns False, without effect, if the node has one already."""
        if node in self._by_node:
            self._touch(self._by_node[node])
            return False
        checkpoint = self._by_node[node] = Checkpoint(node, [slot])
        self._allocator.ledger.move((slot,), owner, checkpoint)
        self._rotation.add(checkpoint)
        self._touch(checkpoint)
        return True

    def used(self, node: PathElement) -> None:
        """Record that a request which used the node's checkpoint has ended or was retracted."""
        if node in self._by_node:
            self._touch(self._by_node[node])

    def remove(self, node: PathElement) -> None:
        """Free the node's checkpoint, if it has one."""
        checkpoint = self._by_node.pop(node, None)
        if checkpoint is not None:
            self._allocator.give(checkpoint.pages, checkpoint)
            checkpoint.pages = []

    def evict(self, num_slots: int) -> None:
        """Free up to ``num_slots`` checkpoints, least recently used first. Their nodes stay in the tree."""
        for _ in range(num_slots):
            checkpoint = self._order.pop(math.inf)
            if checkpoint is None:
                break
            self.remove(checkpoint.node)

    def keep(self, nodes: Collection[Node]) -> None:
        """Forget the checkpoints of all other nodes. The caller rebuilds the accounting and calls ``reorder``."""
        self._by_node = {node: self._by_node[node] for node in nodes if node in self._by_node}

    def drop(self, owners: Collection[int]) -> None:
        """Forget the checkpoints with these ``id()``. The caller rebuilds the accounting and calls ``reorder``."""
        self._by_node = {node: one for node, one in self._by_node.items() if id(one) not in owners}

    def reorder(self) -> None:
        """Rebuild the eviction order and the order of audits."""
        self._order.clear()
        self._rotation.reset(self._by_node.values())
        for checkpoint in self._by_node.values():
            self._order.offer(checkpoint, len(self._by_node))

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """Yield every checkpoint with its slot."""
        return ((checkpoint, checkpoint.pages) for checkpoint in self._by_node.values())

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``."""
        return self._rotation.next_share(share)

    def validate(self) -> list[str]:
        """Return descriptions of all errors. The cost is proportional to the number of checkpoints."""
        return [
            f"{checkpoint.tag} belongs to a node that is not in the tree"
            for node, checkpoint in self._by_node.items()
            if not node.pages or node.parent is None
        ]

    def _touch(self, checkpoint: Checkpoint) -> None:
        checkpoint.last_access = self.access_clock
        self._order.offer(checkpoint, len(self._by_node))
