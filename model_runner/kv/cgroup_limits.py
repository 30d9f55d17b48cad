"""Determines how much memory the process's control groups (cgroup v1 and v2) still allow it to allocate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 62  # bytes; for "no limit", cgroup v1 reports a larger number


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The file names of the memory controller in one cgroup version.

    Attributes:
        mount: mount point of the controller, relative to the root of the file system.
        limits: names of the files that contain a limit in bytes.
        usage: name of the file that contains the used bytes.
        reclaimable: key in memory.stat for the bytes of page cache that the kernel drops before it refuses memory.
    """

    mount: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: str


V2 = Hierarchy("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file")
V1 = Hierarchy("sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def cgroup_room(root: Path = Path("/")) -> int:
    """Return the number of bytes that the process may still allocate; ``UNLIMITED`` if no group has a limit.

    It is the minimum over the process's own group and all parent groups. root: root of the file system.
    """
    return min((_room(folder, kind) for folder, kind in _own_groups(root)), default=UNLIMITED)


def _own_groups(root: Path) -> Iterator[tuple[Path, Hierarchy]]:
    """Yield the folders of the process's group and its parents, for every hierarchy with the memory controller."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        kind = V1 if controllers else V2
        mount = root / kind.mount
        # In a container, the path may be that of the host, which does not exist below the mount. The group is then the
        # mount itself.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts) + 1):
            yield mount.joinpath(*parts[:length]), kind


def _room(folder: Path, kind: Hierarchy) -> int:
    limits = [_number(folder / name) for name in kind.limits]
    limit = min((one for one in limits if one is not None), default=UNLIMITED)
    used = _number(folder / kind.usage)
    if limit >= UNLIMITED or used is None:
        return UNLIMITED
    statistics = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines())
    return max(limit - used + int(statistics.get(kind.reclaimable, 0)), 0)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file does not exist or contains "max"."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
