"""The nodes of a prefix tree, the protocol for pages outside it that continue a path, and the tree's observers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from ebbtide.messages import PoolInfo

from .cached_request import CachedRequest
from .ledger import PageOwner


class PathElement(PageOwner, Protocol):
    """Consecutive pages of cached tokens: a node of a prefix tree, or a ``Tail`` after the last node of a path."""

    pages: list[int]

    @property
    def parent(self) -> PathElement | None:
        """The preceding element; None if it has none, or if the path is not in use."""

    @property
    def locks(self) -> int:
        """Number of running requests whose prefix includes this element."""


class Tail(PageOwner, Protocol):
    """Pages outside the tree that continue a path of nodes for one request, such as the slot of a session."""

    pages: list[int]
    parent: Node | None  # the node after which it begins, while a running request uses it

    @property
    def first(self) -> int:
        """The page index of the first page."""

    @property
    def locks(self) -> int:
        """1 while a running request uses it, otherwise 0."""

    def restore_to_req(self, req: CachedRequest) -> None:
        """Share all pages with ``req``, which already has the pages before ``first``."""


@dataclass(slots=True, eq=False)
class Node:
    """A node of a prefix tree: consecutive pages of cached tokens. A root has no pages and is never evicted."""

    tokens: list[int]  # len(pages) * page_size ids
    pages: list[int]
    parent: Node | None  # None for a root
    namespace: str
    children: dict[tuple[int, ...], Node] = field(
        default_factory=dict
    )  # the key is the tokens of the child's first page
    locks: int = 0  # number of running requests whose prefix includes this node
    last_access: int = 0  # the value of the tree's LRU clock at the last access
    is_tree_node: ClassVar[bool] = True

    @property
    def is_locked(self) -> bool:
        """True if the prefix of a running request includes this node."""
        return self.locks > 0

    @property
    def tag(self) -> str:
        """The node's name in messages."""
        return f"a tree node of {len(self.pages)} pages"

    @property
    def is_root(self) -> bool:
        """True for the root of a namespace."""
        return self.parent is None

    def num_equal_pages(self, tokens: list[int], start: int) -> int:
        """Return the number of this node's leading pages whose tokens match ``tokens[start:]``.

        The first page must match. The number is found by binary search.
        """
        if tokens[start : start + len(self.tokens)] == self.tokens:
            return len(self.pages)
        size = len(self.tokens) // len(self.pages)
        low, high = 1, len(self.pages) - 1
        while low < high:  # the result is in [low, high]; the pages before low match
            middle = (low + high + 1) // 2
            if self.tokens[low * size : middle * size] == tokens[start + low * size : start + middle * size]:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def num_exclusive(self) -> int:
        """Number of pages of this node and its ancestors that only one request uses, if a request uses this node."""
        count = 0
        walk: Node | None = self
        while walk is not None and walk.locks == 1:
            count += len(walk.pages)
            walk = walk.parent
        return count

    def subtree(self) -> Iterator[Node]:
        """Yield the node and all nodes below it, parents before children."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def unused(self) -> list[Node]:
        """Return the subtree of the highest ancestor (or this node) that no request uses, parents before children.

        Returns [] if a request uses this node. A request that uses a node also uses all of its ancestors, so all nodes
        of the returned subtree are unused.
        """
        top, walk = None, self
        while not walk.locks and walk.parent is not None:
            top, walk = walk, walk.parent
        return [] if top is None else list(top.subtree())


class CacheObserver(Protocol):
    """The tree calls an observer for every page that it adds or removes, in order.

    The split of a node is not reported, because no page is added or removed.
    """

    def stored(self, node: Node) -> None:
        """Handle the addition of ``node`` to the tree, as a leaf."""

    def removed(self, pages: Sequence[int]) -> None:
        """Handle the removal of ``pages`` from the tree."""

    def rebuilt(self, nodes: Iterable[Node]) -> None:
        """Handle a rebuild of the tree. It now consists of ``nodes``, parents before children."""

    def window(self, pool: PoolInfo, number: int) -> WindowObserver:
        """Return the observer of a window pool. number: index in ``RunnerInfo.pools``."""


class WindowObserver(Protocol):
    """A window pool calls an observer for every page of a node that it adds or removes, in order.

    A page is named by its node and its index in the node. A node is reported to the ``CacheObserver`` before its window
    is stored, and after its window is removed. After ``CacheObserver.rebuilt``, the whole pool is reported again.
    """

    def stored(self, node: Node, first: int, end: int) -> None:
        """Handle the addition of the window's pages for the pages of ``node`` from index ``first`` to ``end``."""

    def removed(self, node: Node, first: int, end: int) -> None:
        """Handle the removal of the window's pages for the pages of ``node`` from index ``first`` to ``end``."""
