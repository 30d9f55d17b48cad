"""The radix tree over pages of tokens: which computed prefixes can be used again.

Knows tokens and page numbers; knows nothing of rows, queues or devices. Pages hang in the tree in whole pages only, so
that a node boundary is always a page boundary. No operation recurses: a conversation that grows by one word a request
makes a chain of thousands of nodes. The tree idea is RadixAttention's (Zheng et al. 2023, "SGLang").
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from .allocator import PageAllocator
from .ledger import PageOwner
from .node import CacheObserver, Node
from .prefix_cache import MatchResult
from .tree_audit import tree_faults

if TYPE_CHECKING:
    from ..request import Request


class RadixCache:
    """One tree per namespace; evicts unlocked leaves, least recently used first, of a leaf its last pages first."""

    def __init__(self, allocator: PageAllocator, observer: CacheObserver | None = None) -> None:
        self._allocator = allocator
        self._observer = observer
        self._page_size = allocator.page_size
        self._roots: dict[str, Node] = {}
        self.tick = 0
        self._serial = 0
        # Lazy heap of (tick, serial, leaf): an entry counts only while its leaf is still unlocked and unused since.
        self._leaves: list[tuple[int, int, Node]] = []
        self._nodes: deque[Node] = deque()  # all with pages, in the order in which a sweep looks at them
        self.evictable_pages = 0
        self.protected_pages = 0
        self.session_held_pages = self.soft_pages = 0  # sessions are a wrapper's business

    def match_prefix(self, req: Request, limit: int | None = None) -> MatchResult:
        """See ``BasePrefixCache``. Token-exact: no hash stands for tokens."""
        most = req.num_reusable // self._page_size
        limit = most if limit is None else min(limit, most)
        match = MatchResult()
        node = self._roots.get(req.namespace)
        match.node = node
        while node is not None and len(match.pages) < limit:
            child = node.children.get(self._key(req.known, len(match.pages)))
            if child is None:
                break
            same = min(self._same_pages(child, req.known, len(match.pages)), limit - len(match.pages))
            match.pages += child.pages[:same]
            match.num_locked += same if child.locks else 0
            match.node, match.num_in_node = child, same
            node = child if same == len(child.pages) else None
        return match

    def attach(self, req: Request, match: MatchResult) -> None:
        """See ``BasePrefixCache``."""
        node = match.node
        if node is None:
            node = self._root(req.namespace)
        assert isinstance(node, Node)
        if match.num_in_node < len(node.pages):
            node = self._split(node, match.num_in_node)
        self._lock_path(node)
        req.node = node
        req.pages = list(match.pages)
        req.num_shared = len(match.pages)

    def publish(self, req: Request, num_pages: int) -> None:
        """See ``BasePrefixCache``. Starts where the request's shared part ends: its cost is that of the new pages."""
        node = req.node
        assert isinstance(node, Node)
        while req.num_shared < num_pages:
            start = req.num_shared
            child = node.children.get(self._key(req.known, start))
            if child is None:
                node = self._add_leaf(node, req, num_pages)
                break
            same = min(self._same_pages(child, req.known, start), num_pages - start)
            node = child if same == len(child.pages) else self._split(child, same)
            self._lock(node)
            self._switch_to(node, req)
        req.node = node

    def cache_finished_req(self, req: Request, num_pages: int) -> None:
        """See ``BasePrefixCache``."""
        if num_pages > req.num_shared:
            self.publish(req, num_pages)

    def release(self, req: Request) -> None:
        """See ``BasePrefixCache``."""
        node = req.node
        assert isinstance(node, Node)
        req.node = None
        self.tick += 1
        walk: Node | None = node
        while walk is not None:
            walk.locks -= 1
            walk.tick = self.tick
            if walk.locks == 0:
                self.protected_pages -= len(walk.pages)
                self.evictable_pages += len(walk.pages)
            walk = walk.parent
        self._offer(node)

    def evict(self, num_pages: int, before: int | None = None) -> int:
        """See ``BasePrefixCache``."""
        freed = 0
        while freed < num_pages and self._leaves and (before is None or self._leaves[0][0] < before):
            tick, _, leaf = heapq.heappop(self._leaves)
            if tick != leaf.tick or leaf.locks or leaf.children or not leaf.pages:
                continue  # used, locked or grown since it was offered: a newer entry stands for it
            freed += self._trim(leaf, num_pages - freed)
        return freed

    def clear(self) -> None:
        """See ``BasePrefixCache``."""
        self.evict(self.evictable_pages)
        if self._observer is not None:
            self._observer.rebuilt([])

    def lock_only(self, req: Request) -> int:
        """See ``BasePrefixCache``."""
        count = 0
        node = req.node
        assert isinstance(node, Node)
        while node is not None and node.locks == 1:
            count += len(node.pages)
            node = node.parent
        return count

    def walk(self) -> Iterator[Node]:
        """Every node with pages, roots left out, parents before children. For audits: costs the whole tree."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``CacheBooks``: the nodes."""
        return ((node, node.pages) for node in self.walk())

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``CacheBooks``."""
        count = math.ceil(len(self._nodes) * share)
        seen: list[tuple[PageOwner, Sequence[int]]] = []
        for _ in range(count):
            node = self._nodes.popleft()
            if node.pages:  # else it was evicted since the last time round
                self._nodes.append(node)
                seen.append((node, node.pages))
        return seen

    def faults(self, running: Sequence[Request]) -> list[str]:
        """See ``CacheBooks``."""
        ends = [req.node for req in running]
        return tree_faults(list(self.walk()), self.evictable_pages, self.protected_pages, ends)

    def cut(self, doubt: Collection[int]) -> set[int]:
        """See ``CacheBooks``: nodes with a page in ``doubt`` leave, each with its subtree; roots stay."""
        for node in list(self.walk()):
            if node.parent is not None and any(page in doubt for page in node.pages):
                siblings = node.parent.children
                node.parent.children = {key: child for key, child in siblings.items() if child is not node}
        left = list(self.walk())
        if self._observer is not None:
            self._observer.rebuilt(left)
        return {id(node) for node in [*left, *self._roots.values()]}

    def relock(self, running: Sequence[Request]) -> None:
        """See ``CacheBooks``."""
        nodes = list(self.walk())
        for node in [*nodes, *self._roots.values()]:
            node.locks = 0
        self.evictable_pages, self.protected_pages = sum(len(node.pages) for node in nodes), 0
        self._nodes = deque(nodes)
        self._leaves = []
        for req in running:
            assert isinstance(req.node, Node)
            self._lock_path(req.node)
        for node in nodes:
            self._offer(node)

    def _key(self, tokens: list[int], page_index: int) -> tuple[int, ...]:
        start = page_index * self._page_size
        return tuple(tokens[start : start + self._page_size])

    def _same_pages(self, node: Node, tokens: list[int], page_index: int) -> int:
        """How many of the node's first pages equal the tokens from ``page_index`` on; the first page does."""
        size, start = self._page_size, page_index * self._page_size
        if tokens[start : start + len(node.tokens)] == node.tokens:
            return len(node.pages)
        low, high = 1, len(node.pages) - 1
        while low < high:  # the answer lies in [low, high]; pages before low are known to be equal
            middle = (low + high + 1) // 2
            if node.tokens[low * size : middle * size] == tokens[start + low * size : start + middle * size]:
                low = middle
            else:
                high = middle - 1
        return low

    def _root(self, namespace: str) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(tokens=[], pages=[], parent=None, namespace=namespace)
        return root

    def _split(self, node: Node, num_pages: int) -> Node:
        """Cut a node in two and return the new upper half, of ``num_pages`` pages.

        The lower half keeps the object, because requests that end there point at it.
        """
        cut = num_pages * self._page_size
        parent = node.parent
        assert parent is not None
        upper = Node(
            node.tokens[:cut], node.pages[:num_pages], parent, node.namespace, locks=node.locks, tick=node.tick
        )
        self._allocator.ledger.move(tuple(upper.pages), node, upper)
        del node.tokens[:cut], node.pages[:num_pages]
        parent.children[self._key(upper.tokens, 0)] = upper
        upper.children[self._key(node.tokens, 0)] = node
        node.parent = upper
        self._nodes.append(upper)
        return upper

    def _add_leaf(self, parent: Node, req: Request, num_pages: int) -> Node:
        start = req.num_shared
        tokens = req.known[start * self._page_size : num_pages * self._page_size]
        leaf = Node(tokens, req.pages[start:num_pages], parent, parent.namespace)
        self._allocator.ledger.move(tuple(leaf.pages), req, leaf)
        parent.children[self._key(leaf.tokens, 0)] = leaf
        self._nodes.append(leaf)
        self.evictable_pages += len(leaf.pages)
        self._lock(leaf)
        req.num_shared = num_pages
        if self._observer is not None:
            self._observer.stored(leaf)
        return leaf

    def _switch_to(self, node: Node, req: Request) -> None:
        """The same tokens are cached already: use the cached pages, then give the copies back."""
        start, end = req.num_shared, req.num_shared + len(node.pages)
        copies = req.pages[start:end]
        req.pages[start:end] = node.pages
        req.num_shared = end
        req.sent_pages = min(req.sent_pages, start)
        self._allocator.give(copies, req)

    def _lock(self, node: Node) -> None:
        if node.locks == 0:
            self.evictable_pages -= len(node.pages)
            self.protected_pages += len(node.pages)
        node.locks += 1

    def _lock_path(self, node: Node) -> None:
        walk: Node | None = node
        while walk is not None:
            self._lock(walk)
            walk = walk.parent

    def _offer(self, node: Node) -> None:
        """Put an unlocked leaf up for eviction; a root without children is dropped at once."""
        if node.locks or node.children:
            return
        if node.is_root:
            self._roots.pop(node.namespace, None)
            return
        self._serial += 1
        heapq.heappush(self._leaves, (node.tick, self._serial, node))
        if len(self._leaves) > 64 + 4 * len(self._nodes):
            self._leaves = [entry for entry in self._leaves if entry[0] == entry[2].tick and entry[2].pages]
            heapq.heapify(self._leaves)

    def _trim(self, leaf: Node, num_pages: int) -> int:
        """Free the last pages of a leaf, or all of it; returns how many."""
        count = min(num_pages, len(leaf.pages))
        keep = len(leaf.pages) - count
        gone = leaf.pages[keep:]
        self._allocator.give(gone, leaf)
        self.evictable_pages -= count
        if self._observer is not None:
            self._observer.removed(gone)
        parent = leaf.parent
        assert parent is not None
        if keep:
            del leaf.pages[keep:], leaf.tokens[keep * self._page_size :]
            self._offer(leaf)
        else:
            del parent.children[self._key(leaf.tokens, 0)]
            leaf.pages = []
            self._offer(parent)
        return count
