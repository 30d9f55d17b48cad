"""The targets of references, and the depth of a schema with references."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.server.structured.schema_references import num_levels, target

ROOT = {"$defs": {"a/b": {"~": [{"x": 1}]}, "c d": True}}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", ROOT),
        ("#/$defs/a~1b/~0/0", {"x": 1}),
        ("#/$defs/c%20d", True),
        ("#/$defs/nowhere/else", None),
        ("#/$defs/a~1b/~0/1", None),
        ("#/$defs/a~1b/~0/x", None),
        ("#anchor", None),
        ("http://host/#/$defs", None),
    ],
)
def test_a_reference_resolves_to_a_location(reference: str, found: Any) -> None:
    assert target(reference, ROOT) == found


def levels(graph: dict[str, list[str]]) -> int:
    places = {name: [name] for name in graph}
    return num_levels(places["a"], lambda place: [places[name] for name in graph[place[0]]])


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        ({"a": []}, 1),
        ({"a": ["a"]}, 1),
        ({"a": ["b", "c"], "b": ["d"], "c": [], "d": ["c"]}, 4),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, 1),
        ({"a": ["b", "e"], "b": ["c", "d"], "c": ["b"], "d": [], "e": ["b"]}, 4),
        ({"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": ["e"], "e": ["d"]}, 3),
    ],
)
def test_a_circle_counts_as_one(graph: dict[str, list[str]], count: int) -> None:
    assert levels(graph) == count
