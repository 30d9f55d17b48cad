"""The node of a prefix tree and the observer interface of the tree. No algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol


@dataclass(slots=True, eq=False)
class Node:
    """Consecutive pages of cached tokens. A root has no pages and is never evicted."""

    tokens: list[int]  # len(pages) * page_size ids
    pages: list[int]
    parent: Node | None  # None for a root
    namespace: str
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)  # by the tokens of a child's first page
    locks: int = 0  # number of running requests whose prefix includes this node
    last_access: int = 0  # value of the tree's access clock at the last access
    is_tree_node: ClassVar[bool] = True

    @property
    def is_locked(self) -> bool:
        """True if the prefix of a running request includes it."""
        return self.locks > 0

    @property
    def tag(self) -> str:
        """Name in messages."""
        return f"a tree node of {len(self.pages)} pages"

    @property
    def is_root(self) -> bool:
        """True for the root of a namespace."""
        return self.parent is None


class CacheObserver(Protocol):
    """The tree calls it for every page that is added or removed, in order.

    A split of a node is not reported, because no page is added or removed.
    """

    def stored(self, node: Node) -> None:
        """``node`` was added to the tree as a leaf."""

    def removed(self, pages: Sequence[int]) -> None:
        """``pages`` were removed from the tree."""

    def rebuilt(self, nodes: Iterable[Node]) -> None:
        """The tree was rebuilt: it now consists of ``nodes``, parents before children."""
