"""A prefix cache: one radix tree per namespace. It maps token prefixes to the pages that hold their K/V.

The algorithm is RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
2023) over a radix tree (Morrison, "PATRICIA", 1968) with LRU eviction of leaves. The module handles tokens and page
numbers only, no rows, queues or devices. Nodes hold whole pages, so a node boundary is always a page boundary. No
operation recurses, because a conversation that grows by one page per request produces a chain of thousands of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from .allocator import PageAllocator
from .audit_rotation import AuditRotation
from .cached_request import CachedRequest
from .ledger import PageOwner
from .lru_heap import LruHeap
from .node import CacheObserver, Node, Tail
from .prefix_cache import MatchResult
from .tree_audit import validate_tree
from .tree_part import TreePart, TreeParts


class RadixCache:
    """Holds one tree per namespace. Evicts pages from the end of unlocked leaves, least recently used first."""

    def __init__(
        self, allocator: PageAllocator, observer: CacheObserver | None = None, parts: Sequence[TreePart] = ()
    ) -> None:
        """parts: the tree's memory in each of the other pools, in the order of ``RunnerInfo.pools``."""
        self._allocator = allocator
        self._observer = observer
        self._parts = TreeParts(parts)
        self._page_size = allocator.page_size
        self._roots: dict[str, Node] = {}
        self.access_clock = 0
        self._leaves: LruHeap[Node] = LruHeap(_is_unlocked_leaf)
        self._nodes: AuditRotation[Node] = AuditRotation()
        self.evictable_pages = 0
        self.protected_pages = 0
        self.session_held_pages = self.evictable_session_pages = 0  # always 0: only a wrapper has sessions

    def match_prefix(self, req: CachedRequest, limit: int | None = None, tail: Tail | None = None) -> MatchResult:
        """See ``BasePrefixCache``. The comparison uses the tokens themselves, not hashes."""
        most = req.num_reusable // self._page_size
        limit = most if limit is None else min(limit, most)
        if tail is not None:
            limit = min(limit, tail.first)
        path: list[tuple[Node, int]] = []
        num_pages = 0
        node = root = self._roots.get(req.namespace)
        while node is not None and num_pages < limit:
            child = node.children.get(self._key(req.known, num_pages))
            if child is None:
                break
            same = min(child.num_equal_pages(req.known, num_pages * self._page_size), limit - num_pages)
            path.append((child, same))
            num_pages += same
            node = child if same == len(child.pages) else None
        return self._parts.match(path, root, tail if tail is not None and num_pages == tail.first else None)

    def attach(self, req: CachedRequest, match: MatchResult) -> None:
        """See ``BasePrefixCache``."""
        node = match.node
        if node is None:
            node = self._root(req.namespace)
        assert isinstance(node, Node)
        if match.num_in_node < len(node.pages):
            node = self._split(node, match.num_in_node)
        self._lock_path(node)
        req.node = node
        req.num_shared = len(match.pages) - match.num_in_tail
        req.pages = match.pages[: req.num_shared]
        if match.tail is not None:
            match.tail.parent = node
            match.tail.restore_to_req(req)
        self._parts.attached(req, match.tail or node)

    def publish(self, req: CachedRequest, num_pages: int) -> None:
        """See ``BasePrefixCache``.

        The walk begins after the shared pages, so the cost depends only on the number of new pages.
        """
        for end in self._parts.node_ends(req, num_pages):
            self._publish(req, end)

    def _publish(self, req: CachedRequest, num_pages: int) -> None:
        node = req.node
        assert isinstance(node, Node)
        while req.num_shared < num_pages:
            start = req.num_shared
            child = node.children.get(self._key(req.known, start))
            if child is None:
                node = self._add_leaf(node, req, num_pages)
                break
            same = min(child.num_equal_pages(req.known, start * self._page_size), num_pages - start)
            node = child if same == len(child.pages) else self._split(child, same)
            self._lock(node)
            self._use_cached_pages(node, req)
        req.node = node

    def cache_finished_req(self, req: CachedRequest, num_pages: int) -> None:
        """See ``BasePrefixCache``."""
        if num_pages > req.num_shared:
            self.publish(req, num_pages)

    def release(self, req: CachedRequest) -> None:
        """See ``BasePrefixCache``."""
        node = req.node
        assert isinstance(node, Node)
        self.access_clock += 1
        self._parts.released(req, self.access_clock)
        req.node = None
        walk: Node | None = node
        while walk is not None:
            walk.locks -= 1
            walk.last_access = self.access_clock
            if walk.locks == 0:
                self.protected_pages -= len(walk.pages)
                self.evictable_pages += len(walk.pages)
            walk = walk.parent
        self._offer_for_eviction(node)

    def discard(self, node: object) -> None:
        """See ``BasePrefixCache``."""
        assert isinstance(node, Node)
        for unused in reversed(node.unused()):  # children before parents
            self._trim(unused, len(unused.pages))

    def evict(self, num_pages: int, accessed_before: int | None = None) -> int:
        """See ``BasePrefixCache``."""
        freed = 0
        end = math.inf if accessed_before is None else accessed_before
        while freed < num_pages and (leaf := self._leaves.pop(end)) is not None:
            freed += self._trim(leaf, num_pages - freed)
        return freed

    def clear(self) -> None:
        """See ``BasePrefixCache``."""
        self.evict(self.evictable_pages)
        if self._observer is not None:
            self._observer.rebuilt([])

    def exclusively_locked_pages(self, req: CachedRequest) -> int:
        """See ``BasePrefixCache``."""
        assert isinstance(req.node, Node)
        return req.node.num_exclusive

    def walk(self) -> Iterator[Node]:
        """Yield all nodes except roots, parents before children. The cost is proportional to the tree size."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def owners(self) -> Iterator[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``. The owners of cached pages are the nodes."""
        return ((node, node.pages) for node in self.walk())

    def next_owners(self, share: float) -> list[tuple[PageOwner, Sequence[int]]]:
        """See ``AuditedCache``."""
        return self._nodes.next_share(share)

    def validate(self, running: Sequence[CachedRequest]) -> list[str]:
        """See ``AuditedCache``."""
        ends = [req.node for req in running]
        return validate_tree(list(self.walk()), self.evictable_pages, self.protected_pages, ends)

    def drop_pages(self, pages: Collection[int]) -> set[int]:
        """See ``AuditedCache``. Removes each node that owns one of ``pages``, and its subtree; roots remain."""
        for node in list(self.walk()):
            if node.parent is not None and any(page in pages for page in node.pages):
                siblings = node.parent.children
                node.parent.children = {key: child for key, child in siblings.items() if child is not node}
        remaining = list(self.walk())
        self._parts.kept(remaining)
        if self._observer is not None:
            self._observer.rebuilt(remaining)
        return {id(node) for node in [*remaining, *self._roots.values()]}

    def rebuild_locks(self, running: Sequence[CachedRequest]) -> None:
        """See ``AuditedCache``."""
        nodes = list(self.walk())
        for node in [*nodes, *self._roots.values()]:
            node.locks = 0
        self.evictable_pages, self.protected_pages = sum(len(node.pages) for node in nodes), 0
        self._nodes.reset(nodes)
        self._leaves.clear()
        for req in running:
            assert isinstance(req.node, Node)
            self._lock_path(req.node)
        for node in nodes:
            self._offer_for_eviction(node)

    def _key(self, tokens: list[int], page_index: int) -> tuple[int, ...]:
        start = page_index * self._page_size
        return tuple(tokens[start : start + self._page_size])

    def _root(self, namespace: str) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(tokens=[], pages=[], parent=None, namespace=namespace)
        return root

    def _split(self, node: Node, num_pages: int) -> Node:
        """Split a node. Return the new upper node, which has the first ``num_pages`` pages.

        The lower node keeps its object identity, because requests refer to the node where their prefix ends.
        """
        cut = num_pages * self._page_size
        parent = node.parent
        assert parent is not None
        upper = Node(
            node.tokens[:cut],
            node.pages[:num_pages],
            parent,
            node.namespace,
            locks=node.locks,
            last_access=node.last_access,
        )
        self._allocator.ledger.move(tuple(upper.pages), node, upper)
        del node.tokens[:cut], node.pages[:num_pages]
        parent.children[self._key(upper.tokens, 0)] = upper
        upper.children[self._key(node.tokens, 0)] = node
        node.parent = upper
        self._nodes.add(upper)
        self._parts.split(upper, node)
        return upper

    def _add_leaf(self, parent: Node, req: CachedRequest, num_pages: int) -> Node:
        start = req.num_shared
        tokens = req.known[start * self._page_size : num_pages * self._page_size]
        leaf = Node(tokens, req.pages[start:num_pages], parent, parent.namespace)
        self._allocator.ledger.move(tuple(leaf.pages), req, leaf)
        parent.children[self._key(leaf.tokens, 0)] = leaf
        self._nodes.add(leaf)
        self.evictable_pages += len(leaf.pages)
        self._lock(leaf)
        req.num_shared = num_pages
        if self._observer is not None:
            self._observer.stored(leaf)
        self._parts.published(req, leaf, start)
        return leaf

    def _use_cached_pages(self, node: Node, req: CachedRequest) -> None:
        """Replace the request's private pages with the tokens of ``node`` by the pages of ``node``.

        Frees the replaced pages.
        """
        start, end = req.num_shared, req.num_shared + len(node.pages)
        duplicates = req.pages[start:end]
        req.pages[start:end] = node.pages
        req.num_shared = end
        req.sent_pages = min(req.sent_pages, start)
        self._allocator.give(duplicates, req)
        self._parts.published(req, node, start)

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

    def _offer_for_eviction(self, node: Node) -> None:
        """Add ``node`` to the eviction order if it is an unlocked leaf. Remove it if it is a root without children."""
        if node.locks or node.children:
            return
        if node.is_root:
            self._roots.pop(node.namespace, None)
            return
        self._leaves.offer(node, len(self._nodes))

    def _trim(self, leaf: Node, num_pages: int) -> int:
        """Free up to ``num_pages`` pages at the end of a leaf. Return the number of pages freed."""
        count = min(num_pages, len(leaf.pages))
        keep = len(leaf.pages) - count
        freed = leaf.pages[keep:]
        self._allocator.give(freed, leaf)
        self.evictable_pages -= count
        self._parts.trimmed(leaf, count)
        if self._observer is not None:
            self._observer.removed(freed)
        parent = leaf.parent
        assert parent is not None
        if keep:
            del leaf.pages[keep:], leaf.tokens[keep * self._page_size :]
            self._offer_for_eviction(leaf)
        else:
            del parent.children[self._key(leaf.tokens, 0)]
            leaf.pages = []
            self._offer_for_eviction(parent)
        return count


def _is_unlocked_leaf(node: Node) -> bool:
    return not node.locks and not node.children and bool(node.pages)
