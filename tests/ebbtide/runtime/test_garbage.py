"""Garbage collection in the front process is rare, but frees cycles that were in use during a young collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from ebbtide.runtime.garbage import collect_rarely


class Node:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


def test_cycles_of_requests_that_were_open_during_a_collection_are_freed_soon() -> None:
    collect_rarely()
    open_requests = [Node() for _ in range(100)]
    gc.collect(0)  # they are in use and become an older generation
    left = [weakref.ref(node) for node in open_requests]
    del open_requests
    kept: list[list[int]] = [[] for _ in range(260_000)]
    assert not any(reference() for reference in left)
    assert len(kept) == 260_000


def test_a_body_of_many_objects_causes_few_collections() -> None:
    collect_rarely()
    before = [generation["collections"] for generation in gc.get_stats()]
    body: list[list[int]] = [[] for _ in range(480_000)]
    counts = [generation["collections"] - old for generation, old in zip(gc.get_stats(), before, strict=True)]
    assert counts[0] <= 25
    assert counts[2] == 0
    del body
