"""Threads with a large stack, for native code that follows a client's nesting by recursion."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

STACK_BYTES = 256 * 1024 * 1024  # of address space: only what is used becomes memory


def large_stack_pool(num_threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads exist already, each with ``STACK_BYTES`` of stack. Other threads keep theirs.

    Call it from the thread that starts threads: one that is started meanwhile elsewhere may get the large stack, too.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    together = threading.Barrier(num_threads + 1)
    before = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(num_threads):  # none is free before all have come, so that each submission starts one
            pool.submit(together.wait)
    except RuntimeError:  # no room for a thread: those that are there must not wait for it
        together.abort()
        raise
    finally:
        threading.stack_size(before)
    together.wait()
    return pool
