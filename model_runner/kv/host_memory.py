"""Determines the host memory that is available to this process. The module does not import torch."""

from __future__ import annotations

from pathlib import Path

from .cgroup_limits import cgroup_room


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the number of available bytes: those of the host, or fewer if the process's control groups allow fewer.

    Raises OSError if /proc/meminfo does not exist.
    """
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) * 1024, cgroup_room())
