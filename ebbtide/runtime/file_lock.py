"""A file lock that only one process can hold at a time."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def only_one(lock: Path, waiting_for: str) -> Iterator[None]:
    """Hold the lock on the file ``lock`` during the block. The kernel also releases it when the process ends.

    waiting_for: noun phrase for the log line that is written if another process holds the lock.
    """
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for %s", waiting_for)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
