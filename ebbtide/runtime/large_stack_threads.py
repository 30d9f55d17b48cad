"""Threads with a large stack, for native code whose recursion depth grows with the nesting of a client's input."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

STACK_BYTES = 256 * 1024 * 1024  # bytes of address space; memory is committed only when used


def large_stack_pool(num_threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads are already started, each with ``STACK_BYTES`` of stack.

    Until the function returns, the stack size applies to the whole process: other new threads may get it too.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    together = threading.Barrier(num_threads + 1)
    before = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(num_threads):  # the barrier keeps every thread busy, so that each submission starts a new thread
            pool.submit(together.wait)
    except RuntimeError:  # a thread could not be started: release the threads that wait at the barrier
        together.abort()
        raise
    finally:
        threading.stack_size(before)
    together.wait()
    return pool
