"""Thread stacks and dumps of the current process. They work even if another thread hangs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path

MAX_FRAMES = 40  # per thread
WRITE_S = 5.0  # maximum wait for a blocked stderr


def thread_stacks() -> list[str]:
    """Return the stack of every Python thread as text lines, the innermost call last.

    Source lines are omitted, because reading them could block on the disk.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():
        lines.append(f"thread {names.get(ident, ident)}:")
        walk = traceback.walk_stack(frame)
        summary = traceback.StackSummary.extract(walk, limit=MAX_FRAMES, lookup_lines=False)
        lines += [f"  {entry.filename}:{entry.lineno} in {entry.name}" for entry in reversed(summary)]
    return lines


def write_dump(text: str, *, path: str = "") -> None:
    """Write ``text`` to stderr, and atomically to the file ``path`` if it is given. Waits at most ``WRITE_S`` seconds.

    The function bypasses logging, because a hanging thread may hold the lock of a log handler.
    """
    writing = threading.Thread(target=_write, args=(text, path), name="dump", daemon=True)
    writing.start()
    writing.join(WRITE_S)


def _write(text: str, path: str) -> None:
    if path:
        with contextlib.suppress(OSError):  # the text must still be written to stderr if the disk is full
            unfinished = Path(path + ".new")
            unfinished.write_text(text)
            unfinished.rename(path)
    rest = text.encode()
    while rest:
        rest = rest[os.write(2, rest) :]
