"""The group of ranks that compute one model, with its collective operations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import one_line


class RankError(RuntimeError):
    """An exception after which the ranks may be at different operations. No further plan can be computed."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of one process among the ranks.

    Attributes:
        rank: number of the rank, from 0.
        size: number of ranks.
        rendezvous: path of a file through which the ranks find each other. The first rank creates it.
        timeout_s: limit for the connection and for each later operation, in seconds.
    """

    rank: int
    size: int
    rendezvous: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """A rank's view of the group. Every rank must call the same operations in the same order.

    Attributes:
        rank: number of this rank, from 0.
        size: number of ranks.
    """

    rank: int
    size: int

    def share_of(self, count: int) -> int:
        """Return the size of a rank's part of ``count`` elements. The parts of the last ranks may be smaller."""
        return -(-count // self.size)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Replace ``x`` by its sum over all ranks, in place, and return it. The sum is bitwise equal on all ranks."""
        dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate the ``x`` of all ranks along the last dimension: [n, m] → [n, size × m]."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    def minimum(self, value: int, device: torch.device) -> int:
        """Return the smallest ``value`` of all ranks."""
        smallest = torch.tensor([value], dtype=torch.int64, device=device)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        return int(smallest.item())


def join(place: RankPlace, device: torch.device) -> Group:
    """Connect to the other ranks and return the group. Blocks until every rank has called this function.

    Raises StartupError if the ranks do not connect in time.
    """
    if device.type == "cpu":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks run on this host, whose name may not resolve
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{place.rendezvous}",
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=place.timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise StartupError(
            f"Rank {place.rank} of {place.size} (--tp) cannot connect to the other ranks: {one_line(error)}."
        ) from error
    return Group(place.rank, place.size)


@contextmanager
def in_step() -> Iterator[None]:
    """Turn an exception in the block, which contains collective operations, into a RankError.

    The other ranks may have continued, so that the block cannot be repeated.
    """
    try:
        yield
    except Exception as error:
        raise RankError(f"a tensor-parallel step failed: {error}") from error
