"""Determines the free memory and the size of the KV pool. The module does not depend on models."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ebbtide.errors import StartupError
from ebbtide.paging import pages_for

from .host_memory import available_memory
from .lazy_memory import promised_bytes

CPU_POOL_LIMIT = 4 << 30  # in bytes; leaves memory for a second daemon on the machine


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """The values that determine the size of the pool.

    Attributes:
        free_bytes: free memory before the weights were loaded, in bytes.
        weight_bytes: size of the weights in bytes.
        fraction: share of ``free_bytes`` that weights and pool may use together.
        size_of: number of pages of the first pool → size of all pools in bytes.
        page_size: number of tokens per page.
        limit_bytes: maximum size of the pools if ``max_total_tokens`` is None; None for no limit.
        max_total_tokens: the requested size of the first pool in tokens; None to use the available memory.
    """

    free_bytes: int
    weight_bytes: int
    fraction: float
    size_of: Callable[[int], int]
    page_size: int
    limit_bytes: int | None
    max_total_tokens: int | None

    def num_pages(self) -> int:
        """Return the number of pages of the first pool.

        Raises StartupError if there is too little memory for a single page, or for the requested size.
        """
        room = int(self.free_bytes * self.fraction) - self.weight_bytes
        if self.max_total_tokens is not None:
            return self._requested_pages(room)
        room = room if self.limit_bytes is None else min(room, self.limit_bytes)
        if room < self.size_of(1):
            raise StartupError(
                f"There is no memory for a KV pool: {_gib(self.free_bytes)} are free, {self.fraction:.0%} may be used, "
                f"and the weights take {_gib(self.weight_bytes)}."
            )
        too_many = 2
        while self.size_of(too_many) <= room:
            too_many *= 2
        return bisect_right(range(too_many), room, key=self.size_of) - 1

    def _requested_pages(self, room: int) -> int:
        assert self.max_total_tokens is not None
        if self.max_total_tokens < 1:
            raise StartupError(f"--max-total-tokens {self.max_total_tokens} is not a valid size; give 1 or more.")
        pages = pages_for(self.max_total_tokens, self.page_size)
        if self.size_of(pages) > room:
            raise StartupError(
                f"--max-total-tokens {self.max_total_tokens} needs {_gib(self.size_of(pages))} for the KV pool "
                f"but only {_gib(max(room, 0))} are left after the weights."
            )
        return pages


def free_memory(device: torch.device) -> int:
    """Return the number of bytes that this process can still allocate on the device.

    On the CPU, the memory that KV pools on this host have reserved but not yet used is subtracted.
    """
    if device.type != "cpu":
        free, _ = torch.accelerator.get_memory_info(device)
        return int(free)
    return max(available_memory() - promised_bytes(), 0)


def pool_limit(device: torch.device, num_ranks: int = 1) -> int | None:
    """Return the maximum size in bytes of a pool whose size was not requested; None for no limit.

    num_ranks: number of processes that share the limit of the CPU.
    """
    return CPU_POOL_LIMIT // num_ranks if device.type == "cpu" else None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
