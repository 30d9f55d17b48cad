"""Keeps garbage collections short in a process with an event loop."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 100_000  # a collection of this many takes some milliseconds
RARELY = 1000  # collections of one generation per collection of the next


def collect_rarely() -> None:
    """Exempt the present objects from garbage collection, and collect only young objects from now on, almost always.

    By default a large request body causes several collections of all objects, which hold the GIL for up to a second.
    Reference counting frees nearly everything; few reference cycles live long enough to wait for a full collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, RARELY, RARELY)
