"""Host memory for the K/V pages of retracted requests, in every pool.

The module refers to pages by number and does not know their owners.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ebbtide.errors import StartupError

from .kv_pool import KVPool
from .page_copies import PageMoves

GIB = 1 << 30
MIB = 1 << 20
HOST_SHARE = 0.9  # share of the free memory that may be used: pinned pages cannot be swapped out
# PyTorch rounds pinned allocations up to a power of two: one large block could take twice its size.
SLAB_BYTES = GIB


class HostPages:
    """Host memory for ``num_pages`` pages of a pool, pinned if the pool is on an accelerator.

    The constructor allocates all of this memory and writes to it. Raises StartupError if the allocation fails.
    """

    def __init__(self, pool: KVPool, num_pages: int) -> None:
        self.num_pages = num_pages
        num_parts = pool.shape.num_layers * 2  # K and V of each layer
        self._device_pages = pool.data.view(num_parts, pool.num_pages, -1)  # [parts, pages, elements of a part]
        self._slab_pages = max(1, SLAB_BYTES // bytes_per_page(pool))
        part_size = self._device_pages.shape[2]
        try:
            self._slabs = [
                _touched((min(self._slab_pages, num_pages - first), num_parts, part_size), pool)
                for first in range(0, num_pages, self._slab_pages)
            ]
        except RuntimeError as error:
            raise StartupError(f"The host memory of --kv-offload-gb could not be allocated: {error}.") from error

    def carry_out(self, moves: PageMoves) -> None:
        """Queue the copies in the device's current stream, without waiting for them."""
        for source, target in zip(moves.to_host.sources, moves.to_host.targets, strict=True):
            self._page(target).copy_(self._device_pages[:, source], non_blocking=True)
        for source, target in zip(moves.to_device.sources, moves.to_device.targets, strict=True):
            self._device_pages[:, target].copy_(self._page(source), non_blocking=True)

    def _page(self, number: int) -> Tensor:
        """Return one host page, [parts, elements of a part]. It is contiguous, so that one transfer copies it."""
        return self._slabs[number // self._slab_pages][number % self._slab_pages]


class HostTierPages:
    """The host pages for each pool of ``RunnerInfo.pools``. A pool without layers has pages without memory."""

    def __init__(self, pools: Sequence[KVPool], counts: Sequence[int]) -> None:
        """counts: number of host pages for each pool. Raises StartupError if the allocation fails."""
        sized = zip(pools, counts, strict=True)
        self._pages = [HostPages(pool, count) if pool.index_of else None for pool, count in sized]

    def carry_out(self, moves: Sequence[tuple[int, PageMoves]]) -> None:
        """Queue the copies of each pool, given by its index; see ``HostPages.carry_out``."""
        for number, of_pool in moves:
            pages = self._pages[number]
            if pages is not None:
                pages.carry_out(of_pool)


def bytes_per_page(pool: KVPool) -> int:
    """Return the number of bytes of one page, over all layers."""
    return pool.shape.token_bytes(pool.dtype) * pool.page_size


def num_host_pages(kv_offload_gb: float, page_bytes: int, free_bytes: int) -> int:
    """Return the number of pages that fit into ``kv_offload_gb`` GiB of host memory; 0 if ``kv_offload_gb`` is 0.

    free_bytes: free host memory in bytes.
    Raises StartupError if ``kv_offload_gb`` is less than one page or exceeds the free memory.
    """
    if not kv_offload_gb:
        return 0
    count = int(kv_offload_gb * GIB) // page_bytes
    if count == 0:
        raise StartupError(
            f"--kv-offload-gb {kv_offload_gb:.10g} is less than one page of {page_bytes / MIB:.2f} MiB; give more or 0."
        )
    room = int(free_bytes * HOST_SHARE)
    if count * page_bytes > room:
        raise StartupError(
            f"--kv-offload-gb {kv_offload_gb:.10g} does not fit: {free_bytes / GIB:.2f} GiB of host memory are free, "
            f"and {room / GIB:.2f} GiB may be used."
        )
    return count


def _touched(size: tuple[int, int, int], pool: KVPool) -> Tensor:
    return torch.empty(size, dtype=pool.dtype, pin_memory=pool.device.type != "cpu").fill_(0)
