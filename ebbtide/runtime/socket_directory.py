"""The private directory that holds the sockets of one daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebbtide.config import Addresses, Ranks
from ebbtide.errors import StartupError

PREFIX = "ebbtide-"
LOCK = "lock"
MAX_SOCKET_PATH = 100  # sockaddr_un holds 108 bytes on Linux, 104 on macOS


@contextmanager
def socket_directory() -> Iterator[Path]:
    """Create a directory with mode 0700, and remove it at the end of the block.

    Directories of killed daemons, whose locks the kernel has released, are removed first.
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
    """Return the addresses of all processes. incarnation: number of engines that this daemon has started before."""
    names = ("front", "scheduler", "detokenizer", "encoder")
    return Addresses(*(_address(directory, name, incarnation) for name in names))


def ranks_in(directory: Path, size: int, incarnation: int, timeout_s: float) -> Ranks:
    """Return the addresses and the rendezvous file of ``size`` tensor-parallel ranks."""
    return Ranks(
        rendezvous=str(directory / f"rendezvous-{incarnation}"),
        addresses=tuple(_address(directory, f"rank-{rank}", incarnation) for rank in range(1, size)),
        timeout_s=timeout_s,
    )


def _address(directory: Path, name: str, incarnation: int) -> str:
    return f"ipc://{directory}/{name}{f'-{incarnation}' if incarnation else ''}"


def living_daemons() -> dict[int, Path]:
    """Return front process id → socket directory, for this user's running daemons with the same TMPDIR."""
    found: dict[int, Path] = {}
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError, ValueError):  # the file belongs to another user, or was removed meanwhile
            if path.stat().st_uid == os.getuid() and not _is_abandoned(path):
                found[int(path.read_text())] = path.parent
    return found


def _lock(path: Path) -> int:
    """Create the lock file in ``path``, locked. Returns its descriptor, which holds the lock until it is closed.

    The file is locked before it gets its final name, so that no other process can see it unlocked.
    """
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
        return False  # the file belongs to another user, or was removed meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return path.parent.stat().st_uid == os.getuid()
