"""Is a prefix tree what it says it is: counters against a recount, and every lock has its owner. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .node import Node
from .prefix_cache import CacheNode

NAMED_NODES = 8


def tree_faults(
    nodes: Sequence[Node], evictable_pages: int, protected_pages: int, ends: Iterable[CacheNode | None]
) -> list[str]:
    """What is wrong, in words. ``ends``: the node at which each lock that is held begins."""
    faults = []
    evictable = sum(len(node.pages) for node in nodes if not node.locks)
    protected = sum(len(node.pages) for node in nodes if node.locks)
    if (evictable, protected) != (evictable_pages, protected_pages):
        faults.append(
            f"the tree counts {evictable_pages} evictable and {protected_pages} locked pages, "
            f"a recount finds {evictable} and {protected}"
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
        named = ", ".join(_in_words(node, locks[id(node)]) for node in wrong[:NAMED_NODES])
        more = f" and {len(wrong) - NAMED_NODES} more" if len(wrong) > NAMED_NODES else ""
        faults.append(f"nodes whose locks match no running requests: {named}{more}")
    return faults


def _in_words(node: Node, locks: int) -> str:
    return f"{node.tag} from page {node.pages[0]} on, locked {node.locks} times, by {locks} running requests"
