"""Diagnostic dumps that the front process writes: of itself, and of a child process that has stopped responding."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from ebbtide.runtime.stacks import thread_stacks

MAX_BYTES = 64 << 10
MAX_KINDS = 50
KERNEL_FIELDS = ("State", "Threads", "VmRSS", "SigPnd", "ShdPnd")


def front_dump(title: str, lines: list[str]) -> str:
    """Return a dump of the front process as text, at most ``MAX_BYTES`` long. Call it on the event loop's thread.

    lines: the result of ``Frontend.describe``.
    """
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
    """Return a dump of an unresponsive child process as text: ``lines``, and the state of the process in /proc.

    The stacks are not included, because the child process was asked to write them to the log itself.
    """
    return "\n".join(
        [
            f"==== front: the {name} has been silent for {silence_s:.1f} s and is being killed ====",
            f"process {pid}: {_process_state(pid)}",
            *lines,
            "the stacks of the process are above, unless it was stopped or could not write them",
            "==== end of front's dump ====",
            "",
        ]
    )


def _process_state(pid: int) -> str:
    """Describe the process state in /proc: whether the process is stopped, running or waiting for a disk."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError as error:
        return f"/proc cannot be read ({type(error).__name__})"
    fields = dict(line.partition(":")[::2] for line in status.splitlines())
    return ", ".join(f"{name} {' '.join(fields[name].split())}" for name in KERNEL_FIELDS if name in fields)
