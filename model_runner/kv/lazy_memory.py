"""Reserves host memory that is allocated on first use, and reports how much memory running daemons have reserved.

Without this report, two daemons that start one after the other would reserve the same free memory. The memory is a
memfd file, whose size and number of used blocks can be read in /proc by every process of the same user.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

NAME = "ebbtide-kv-pool"
BLOCK = 512  # bytes, the unit of ``st_blocks``


def lazy_zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros in CPU memory. On Linux, each page of it is allocated when it is first written."""
    num_bytes = torch.Size(size).numel() * dtype.itemsize
    if sys.platform != "linux" or num_bytes == 0:
        return torch.zeros(size, dtype=dtype)
    descriptor = os.memfd_create(NAME)
    try:
        os.ftruncate(descriptor, num_bytes)
        memory = mmap.mmap(descriptor, num_bytes)  # the mapping keeps its own descriptor
    finally:
        os.close(descriptor)
    return torch.frombuffer(memory, dtype=dtype).view(size)


def promised_bytes(process: str = "[0-9]*") -> int:
    """Return how many bytes the pools of running processes, including this one, have reserved but not yet allocated.

    process: glob pattern for the process ids.
    """
    pools = {(status.st_dev, status.st_ino): status for status in _pools(process)}
    return sum(max(status.st_size - status.st_blocks * BLOCK, 0) for status in pools.values())


def _pools(process: str) -> Iterator[os.stat_result]:
    """Yield the status of every pool's file in /proc, once per descriptor.

    Processes of other users, and processes that end meanwhile, are skipped.
    """
    for folder in Path("/proc").glob(f"{process}/fd"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if NAME in os.readlink(entry.path):
                    yield os.stat(entry.path)
