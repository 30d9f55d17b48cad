"""What a process says of itself when asked: where its threads are, and how the text gets out whatever hangs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path

MAX_FRAMES = 40  # of one thread's stack
WRITE_S = 5.0  # how long a stderr that nobody reads may hold up who writes


def thread_stacks() -> list[str]:
    """Where every Python thread is, innermost call last, without source lines: those would be read from disk."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}:")
        walk = traceback.walk_stack(frame)
        summary = traceback.StackSummary.extract(walk, limit=MAX_FRAMES, lookup_lines=False)
        lines += [f"  {entry.filename}:{entry.lineno} in {entry.name}" for entry in reversed(summary)]
    return lines


def write_dump(text: str, *, path: str = "") -> None:
    """Write to stderr, and whole to the file ``path`` if there is one; waits ``WRITE_S`` seconds at most.

    Not through the log: a thread that hangs may hold its lock.
    """
    writing = threading.Thread(target=_write, args=(text, path), name="dump", daemon=True)
    writing.start()
    writing.join(WRITE_S)


def _write(text: str, path: str) -> None:
    if path:
        with contextlib.suppress(OSError):  # a full disk must not keep it from stderr
            unfinished = Path(path + ".new")
            unfinished.write_text(text)
            unfinished.rename(path)
    rest = text.encode()
    while rest:
        rest = rest[os.write(2, rest) :]
