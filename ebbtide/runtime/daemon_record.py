"""The file in a daemon's private directory by which commands of the same user find the running daemon."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from .socket_directory import living_daemons

FILE = "daemon.json"


class DaemonRecord(msgspec.Struct, frozen=True):
    """A daemon that is ready.

    Attributes:
        pid: process id of the front process.
        url: base URL for a client on this machine, without /v1.
        model: the argument MODEL of the daemon's command line.
        names: the model's names in the API.
        directory: folder of the model's files; "" for the simulated model.
        gguf: name of the GGUF file in ``directory``, or None.
        started: Unix time in seconds.
        needs_key: True if requests need an API key.
    """

    pid: int
    url: str
    model: str
    names: tuple[str, ...]
    directory: str
    gguf: str | None
    started: float
    needs_key: bool = False

    def is_called(self, name: str) -> bool:
        """Return True if ``name`` is the daemon's MODEL or one of the model's names."""
        return name == self.model or name in self.names


def write_record(directory: Path, record: DaemonRecord) -> None:
    """Write the record atomically. Call it when the daemon is ready. The record is removed with its directory."""
    unnamed = directory / f"{FILE}.new"
    unnamed.write_bytes(msgspec.json.encode(record))
    unnamed.rename(directory / FILE)


def living_records() -> list[DaemonRecord]:
    """Return the records of this user's running daemons, the oldest first. A daemon that is still loading has none."""
    records = []
    for directory in living_daemons().values():
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            records.append(msgspec.json.decode((directory / FILE).read_bytes(), type=DaemonRecord))
    return sorted(records, key=lambda record: record.started)
