"""The front's dumps: of itself, with what it knows of its children, and of a child that cannot speak any more."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from ebbtide.runtime.stacks import thread_stacks

MAX_BYTES = 64 << 10
MAX_KINDS = 50
KERNEL_FIELDS = ("State", "Threads", "VmRSS", "SigPnd", "ShdPnd")


def front_dump(title: str, lines: list[str]) -> str:
    """The text, at most ``MAX_BYTES``. lines: what the front says of itself. Call it on the loop's thread."""
    tasks = Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]
    text = "\n".join(
        [
            f"==== front: {title} ====",
            *lines,
            "tasks:",
            *(f"  {count} x {name}" for name, count in tasks.most_common(MAX_KINDS)),
            "stacks:",
            *thread_stacks(),
        ]
    )
    return text.encode()[:MAX_BYTES].decode(errors="ignore") + "\n==== end of front's dump ====\n"


def silent_child_dump(name: str, pid: int, silence_s: float, lines: list[str]) -> str:
    """What can be said of a child that says nothing: its last words to the front, and what the kernel knows of it.

    Its own stacks are not in here: it was asked for them, and wrote them to its log if it could.
    """
    return "\n".join(
        [
            f"==== front: the {name} has been silent for {silence_s:.1f} s and is killed ====",
            f"process {pid}: {_seen_from_outside(pid)}",
            *lines,
            "its stacks are above, unless it was stopped or could not write",
            "==== end of front's dump ====",
            "",
        ]
    )


def _seen_from_outside(pid: int) -> str:
    """The state that tells a stopped process from one that computes and one that waits for the disk."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        return f"the kernel tells nothing ({type(error).__name__})"
    fields = dict(line.partition(":")[::2] for line in status.splitlines())
    return ", ".join(f"{name} {' '.join(fields[name].split())}" for name in KERNEL_FIELDS if name in fields)
