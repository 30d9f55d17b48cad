"""The private directory in which one daemon's processes meet. Knows nothing of the sockets in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.config import Addresses
from ebbtide.errors import StartupError

PREFIX = "ebbtide-"
LOCK = "lock"
MAX_SOCKET_PATH = 100  # sockaddr_un holds 108 bytes on Linux, 104 elsewhere


@contextmanager
def socket_directory() -> Iterator[Path]:
    """A new directory that only this user can enter (0700); gone afterwards.

    A daemon that was killed outright cannot remove its own, so its successor does: the kernel has released its lock.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        if len(os.fsencode(path)) + len("/detokenizer") > MAX_SOCKET_PATH:
            raise StartupError(f"The path {path} is too long for a socket: set TMPDIR to a shorter directory.")
        lock = _lock(path)
        try:
            yield path
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def addresses_in(directory: Path, incarnation: int = 0) -> Addresses:
    """Where the three processes bind; ``incarnation`` counts the engines that the daemon has had before."""
    suffix = f"-{incarnation}" if incarnation else ""
    return Addresses(*(f"ipc://{directory}/{name}{suffix}" for name in ("front", "scheduler", "detokenizer")))


def living_daemons() -> dict[int, Path]:
    """This user's daemons that run now with this temporary directory: the front's process id → their directory."""
    found: dict[int, Path] = {}
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError, ValueError):  # another user's, or gone by now
            if path.stat().st_uid == os.getuid() and not _is_abandoned(path):
                found[int(path.read_text())] = path.parent
    return found


def _lock(path: Path) -> int:
    """Hold ``path``'s lock until the descriptor is closed. It gets its name when it is held: nobody finds it free."""
    unnamed = path / f"{LOCK}.new"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(lock, str(os.getpid()).encode())
    unnamed.rename(path / LOCK)
    return lock


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        if _is_abandoned(path):
            shutil.rmtree(path.parent, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False  # another user's, or gone by now
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return path.parent.stat().st_uid == os.getuid()
