"""Compares the counters and locks of a prefix tree with a recount, without changing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .cached_request import CacheNode
from .node import Node

NAMED_NODES = 8


def validate_tree(
    nodes: Sequence[Node], evictable_pages: int, protected_pages: int, ends: Iterable[CacheNode | None]
) -> list[str]:
    """Return descriptions of all errors.

    ends: for each running request, the node in which its prefix ends.
    """
    errors = []
    evictable = sum(len(node.pages) for node in nodes if not node.locks)
    protected = sum(len(node.pages) for node in nodes if node.locks)
    if (evictable, protected) != (evictable_pages, protected_pages):
        errors.append(
            f"the tree counts {evictable_pages} evictable and {protected_pages} locked pages, "
            f"but a recount finds {evictable} and {protected}"
        )
    locks: Counter[int] = Counter()
    for end in ends:
        assert end is None or isinstance(end, Node)
        walk = end
        while walk is not None:
            locks[id(walk)] += 1
            walk = walk.parent
    wrong = [node for node in nodes if node.locks != locks[id(node)]]
    if wrong:
        named = ", ".join(_describe(node, locks[id(node)]) for node in wrong[:NAMED_NODES])
        more = f" and {len(wrong) - NAMED_NODES} more" if len(wrong) > NAMED_NODES else ""
        errors.append(f"nodes whose lock count differs from the number of running requests: {named}{more}")
    return errors


def _describe(node: Node, locks: int) -> str:
    return f"{node.tag}, first page {node.pages[0]}, has {node.locks} locks for {locks} running requests"
