"""Determines how much memory the process's control groups (cgroup v1 and v2) still allow it to allocate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..control_groups import own_groups, text_of

UNLIMITED = 1 << 62  # bytes; for "no limit", cgroup v1 reports a larger number


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The file names of the memory controller in one cgroup version.

    Attributes:
        limits: names of the files that contain a limit in bytes.
        usage: name of the file that contains the used bytes.
        reclaimable: key in memory.stat for the bytes of page cache that the kernel drops before it refuses memory.
    """

    limits: tuple[str, ...]
    usage: str
    reclaimable: str


V2 = Hierarchy(("memory.max", "memory.high"), "memory.current", "inactive_file")
V1 = Hierarchy(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def cgroup_room(root: Path = Path("/")) -> int:
    """Return the number of bytes that the process may still allocate; ``UNLIMITED`` if no group has a limit.

    It is the minimum over the process's own group and all parent groups. root: root of the file system.
    """
    groups = own_groups(root, "memory")
    return min((_room(folder, V1 if is_v1 else V2) for folder, is_v1 in groups), default=UNLIMITED)


def _room(folder: Path, kind: Hierarchy) -> int:
    limits = [_number(folder / name) for name in kind.limits]
    limit = min((one for one in limits if one is not None), default=UNLIMITED)
    used = _number(folder / kind.usage)
    if limit >= UNLIMITED or used is None:
        return UNLIMITED
    statistics = dict(line.split(" ", 1) for line in text_of(folder / "memory.stat").splitlines())
    return max(limit - used + int(statistics.get(kind.reclaimable, 0)), 0)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file does not exist or contains "max"."""
    text = text_of(path).strip()
    return int(text) if text.isdecimal() else None
