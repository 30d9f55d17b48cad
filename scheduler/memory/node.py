"""A node of the prefix tree, and whoever wants to know what the tree holds. Knows no algorithm of the tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages. tokens: len(pages) * page_size ids. locks: running requests whose prefix goes through here.

    tick: when it was last used, in the tree's own count. A root has no pages and a namespace; it is never evicted.
    """

    tokens: list[int]
    pages: list[int]
    parent: Node | None
    namespace: str
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    locks: int = 0
    tick: int = 0
    is_tree_node: ClassVar[bool] = True

    @property
    def is_locked(self) -> bool:
        """True if a running request uses it."""
        return self.locks > 0

    @property
    def tag(self) -> str:
        """Its name in messages."""
        return f"a tree node of {len(self.pages)} pages"

    @property
    def is_root(self) -> bool:
        """Roots are made and dropped by namespace, never by eviction order."""
        return self.parent is None


class CacheObserver(Protocol):
    """Hears of every page that joins or leaves the tree, in order. A split moves no page and is not told."""

    def stored(self, node: Node) -> None:
        """A new leaf hangs in the tree."""

    def removed(self, pages: Sequence[int]) -> None:
        """These pages are out of the tree."""

    def rebuilt(self, nodes: Iterable[Node]) -> None:
        """Forget everything: ``nodes``, parents before children, are all that the tree holds."""
