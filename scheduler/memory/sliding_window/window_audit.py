"""Compares the counters and locks of the spans of a window pool with a recount, without changing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ..node import PathElement
from .window_span import WindowSpan


def validate_spans(
    spans: Collection[WindowSpan], users: Mapping[PathElement, Counter[int]], counted: Mapping[bool, tuple[int, int]]
) -> list[str]:
    """Return descriptions of all errors. The cost is proportional to the number of spans.

    Args:
        spans: all spans.
        users: for each element that running requests read, the expected value of ``WindowSpan.users``.
        counted: the counters of evictable and of locked pages: of tree nodes for True, of tails for False.
    """
    errors = []
    for is_tree_node, counters in counted.items():
        kind = [span for span in spans if span.is_tree_node is is_tree_node]
        locked = sum(max(users[span.node], default=0) for span in kind)
        found = (sum(len(span.pages) for span in kind) - locked, locked)
        if counters != found:
            name = "tree nodes" if is_tree_node else "sessions"
            errors.append(f"windows of {name} count {counters} evictable and locked pages, but have {found}")
    for span in spans:
        if span.users != users[span.node]:
            errors.append(f"{span.tag} has the locks {span.users}, but running requests need {dict(users[span.node])}")
        if len(span.pages) > len(span.node.pages):
            errors.append(f"{span.tag} has too many pages")
    return errors
