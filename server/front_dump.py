"""The front's own dump: what it knows of its children, what is open, and where its threads and tasks are."""

from __future__ import annotations

import asyncio
from collections import Counter

from ebbtide.stacks import thread_stacks

MAX_BYTES = 64 << 10
MAX_KINDS = 50


def front_dump(title: str, lines: list[str], num_open: int) -> str:
    """The text, at most ``MAX_BYTES``. lines: what liveness says. Call it on the loop's thread."""
    tasks = Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]
    text = "\n".join(
        [
            f"==== front: {title} ====",
            *lines,
            f"open HTTP requests: {num_open}",
            "tasks:",
            *(f"  {count} x {name}" for name, count in tasks.most_common(MAX_KINDS)),
            "stacks:",
            *thread_stacks(),
        ]
    )
    return text.encode()[:MAX_BYTES].decode(errors="ignore") + "\n==== end of front's dump ====\n"
