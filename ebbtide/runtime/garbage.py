"""Keeps garbage collections short in a process with an event loop."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 100_000  # a collection of this many objects takes some milliseconds
RARELY = 1000  # collections of one generation before the next generation is collected


def collect_rarely() -> None:
    """Exempt the present objects from garbage collection, and from now on collect old generations very rarely.

    By default a large request body causes several collections of all objects, which hold the GIL for up to a second.
    Reference counting frees nearly all objects, and few reference cycles live long enough to need a full collection.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, RARELY, RARELY)
