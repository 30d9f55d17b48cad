"""Processes large request bodies in a thread, so that the event loop can serve other requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ebbtide.errors import Rejected

LARGE_BYTES = 64 * 1024  # processing a body of this size takes at most a few milliseconds, whatever its content
T = TypeVar("T")


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which processes a body of ``num_bytes`` bytes.

    Runs it in a thread if the body is large. Raises Rejected if ``work`` raises it.
    """
    return work() if num_bytes <= LARGE_BYTES else await _in_thread(work)


async def coroutine_in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a thread, on a new event loop.

    Returns its result. Raises Rejected if the coroutine raises it.
    """
    return await _in_thread(lambda: asyncio.run(work()))


async def _in_thread(work: Callable[[], T]) -> T:
    result = await asyncio.to_thread(_without_traceback, work)
    if isinstance(result, Rejected):
        raise result
    return result


def _without_traceback(work: Callable[[], T]) -> T | Rejected:
    """Return the result of ``work``, or the Rejected that it raises.

    The traceback is dropped, because it refers to the body, which would then be freed on the event loop's thread.
    """
    try:
        return work()
    except Rejected as error:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
