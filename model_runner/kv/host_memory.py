"""Determines the host memory that is available to this process. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from .cgroup_limits import cgroup_room


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the available bytes of the host, or of the process's control groups if these allow less.

    Raises OSError if the system does not report its memory as Linux does.
    """
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) * 1024, cgroup_room())
