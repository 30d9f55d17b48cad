"""Resolves references in a JSON schema, and computes its depth including references.

The module does not validate schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

Schema = Any
Successors = Callable[[Schema], list[Schema]]


def target(reference: str, root: Schema) -> Schema:
    """Return the target of a local reference (``#``, ``#/a/b``); None if it is missing or not local."""
    path = unquote(reference)
    if path != "#" and not path.startswith("#/"):
        return None
    place = root
    for part in path.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and len(name) < 9 and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


class _Walk:
    """Tarjan's algorithm without recursion. A cycle is finished after all nodes that can be reached from it."""

    def __init__(self) -> None:
        self.order: dict[int, int] = {}  # order of discovery, by the identity of the node
        self.lowest: dict[int, int] = {}  # the order of the earliest node that each node is known to reach
        self.levels: dict[int, int] = {}  # levels from each finished node down; the same for all nodes of a cycle
        self._beyond: dict[int, int] = {}  # maximum number of levels below each node outside its cycle
        self._open: list[int] = []

    def meet(self, place: int) -> None:
        self.order[place] = self.lowest[place] = len(self.order)
        self._beyond[place] = 0
        self._open.append(place)

    def leads_to(self, place: int, other: int) -> None:
        if other in self.levels:
            self._beyond[place] = max(self._beyond[place], self.levels[other])
        else:
            self.lowest[place] = min(self.lowest[place], self.lowest[other])

    def finish(self, place: int) -> None:
        if self.lowest[place] != self.order[place]:
            return
        circle = [self._open.pop()]
        while circle[-1] != place:
            circle.append(self._open.pop())
        self.levels |= dict.fromkeys(circle, 1 + max(self._beyond[member] for member in circle))


def num_levels(root: Schema, successors: Successors) -> int:
    """Return the number of schemas in the longest chain from ``root``. A cycle counts as one schema."""
    walk = _Walk()
    walk.meet(id(root))
    path: list[tuple[Schema, Iterator[Schema]]] = [(root, iter(successors(root)))]
    while path:
        schema, rest = path[-1]
        inner = next(rest, None)
        if inner is None:
            path.pop()
            walk.finish(id(schema))
            if path:
                walk.leads_to(id(path[-1][0]), id(schema))
        elif id(inner) in walk.order:
            walk.leads_to(id(schema), id(inner))
        else:
            walk.meet(id(inner))
            path.append((inner, iter(successors(inner))))
    return walk.levels[id(root)]
