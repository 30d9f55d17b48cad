"""Memory that the process's control groups leave it: limits of a container or of a systemd unit, cgroup v1 and v2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 62  # bytes; cgroup v1 writes a number above it for "no limit"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The files of one version of the memory controller.

    Attributes:
        mount: of the controller, relative to the root of the file system.
        limits: names of the files with a limit in bytes.
        usage: name of the file with the used bytes.
        reclaimable: key in memory.stat of the page cache that the kernel drops before it refuses memory.
    """

    mount: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: str


V2 = Hierarchy("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file")
V1 = Hierarchy("sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def cgroup_room(root: Path = Path("/")) -> int:
    """Bytes that the process may still allocate: the smallest room of all groups on the path of its own one.

    root: of the file system. Returns ``UNLIMITED`` if no group has a limit.
    """
    return min((_room(folder, kind) for folder, kind in _own_groups(root)), default=UNLIMITED)


def _own_groups(root: Path) -> Iterator[tuple[Path, Hierarchy]]:
    """The process's groups and their parents up to the mount, in every hierarchy that has the memory controller."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        kind = V1 if controllers else V2
        mount = root / kind.mount
        # In a container the path may be the host's, which does not exist below the mount; the mount is then the group.
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
    """The number in a file; None if there is no such file or it says "max"."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
