"""Keeps garbage collections short in a process with an event loop."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 20_000  # a collection of this many objects takes about a millisecond
RARELY = 10  # number of collections of one generation per collection of the next one; the interpreter's default


def collect_rarely() -> None:
    """Exempt the existing objects from garbage collection, and collect after 20,000 new objects instead of 700.

    By default, decoding a large request body triggers many collections. Some are full collections, each of which holds
    the GIL for up to a second. Reference counting frees nearly all objects. The rest are reference cycles. A cycle that
    has survived one collection is freed within about 200,000 new objects. One that has survived more of them, such as
    that of a long connection, waits for a full collection: at least 2,000,000 new objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, RARELY, RARELY)


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause garbage collection during the block, and exempt the objects that exist at its end from later collections.

    Imports create many objects that live as long as the process: collections would take 15 % of the time of importing
    torch.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
