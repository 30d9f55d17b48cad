"""Host memory that is reserved at once and taken page by page as it is used, and what other pools have reserved.

Without an account of it, two daemons that start one after the other would promise the same free memory. The memory is a
file that exists only in memory (memfd), whose size and used blocks every process of the same user can read in /proc.
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
    """Zeros on the CPU. The operating system gives a page of memory when it is first written."""
    num_bytes = torch.Size(size).numel() * dtype.itemsize
    if sys.platform != "linux" or num_bytes == 0:
        return torch.zeros(size, dtype=dtype)
    descriptor = os.memfd_create(NAME)
    try:
        os.ftruncate(descriptor, num_bytes)
        memory = mmap.mmap(descriptor, num_bytes)  # keeps a descriptor of its own
    finally:
        os.close(descriptor)
    return torch.frombuffer(memory, dtype=dtype).view(size)


def promised_bytes() -> int:
    """Bytes that the pools of running processes, this one included, have reserved and not yet taken."""
    pools = {(status.st_dev, status.st_ino): status for status in _pools()}
    return sum(max(status.st_size - status.st_blocks * BLOCK, 0) for status in pools.values())


def _pools() -> Iterator[os.stat_result]:
    """The pools in /proc, once per descriptor. Processes of other users, and those that end meanwhile, are left out."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if NAME in os.readlink(entry.path):
                    yield os.stat(entry.path)
