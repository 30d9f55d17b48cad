"""Chooses the number of CPU threads per step, at start, from --num-threads and the cores that the process may use."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from .control_groups import own_groups, text_of

log = logging.getLogger(__name__)

MANY_CORES = 4  # with more cores than this, one is left to the front process and the detokenizer


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """A number of threads.

    Attributes:
        count: the number of threads; if ``adapts``, its upper bound.
        adapts: True if steps may use fewer threads; see ``ThreadCounts``.
        reason: where the number comes from, for the log.
    """

    count: int
    adapts: bool
    reason: str


def choose_threads(asked: int, environment: Mapping[str, str], cores: int, quota: float) -> ThreadChoice:
    """Choose the number of threads.

    Args:
        asked: value of --num-threads; 0 to choose the number from the other arguments.
        environment: the environment variables.
        cores: number of cores on which the process may run.
        quota: CPU time that the control groups grant, in cores; infinity for no limit.
    """
    if asked:
        return ThreadChoice(asked, adapts=False, reason="--num-threads")
    if "OMP_NUM_THREADS" in environment:
        return ThreadChoice(torch.get_num_threads(), adapts=False, reason="OMP_NUM_THREADS")
    usable = max(1, min(cores, math.floor(quota)) if math.isfinite(quota) else cores)
    limit = "the control group's quota" if usable < cores else "the usable cores"
    if usable > MANY_CORES:
        return ThreadChoice(usable - 1, adapts=True, reason=f"{limit} except one, fewer while they are busy")
    return ThreadChoice(usable, adapts=True, reason=f"{limit}, fewer while they are busy")


def use_threads(asked: int, num_ranks: int = 1) -> bool:
    """Set torch's number of threads and log it. Returns True if steps may use fewer threads.

    num_ranks: number of tensor-parallel processes that share the cores.
    """
    choice = choose_threads(asked, os.environ, max(usable_cores() // num_ranks, 1), cpu_quota() / num_ranks)
    torch.set_num_threads(choice.count)
    log.info("threads of a step: %d (%s)", choice.count, choice.reason)
    return choice.adapts


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operations in the block with one thread. This is faster for many small operations on a busy machine.

    With several threads, each operation waits for all of them, and a wait can last a time slice.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def usable_cores() -> int:
    """Return the number of cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the CPU time that the control groups grant the process, in cores; infinity for no limit.

    The limit is the minimum over the process's own group and all parent groups. root: root of the file system.
    """
    groups = own_groups(root, "cpu")
    return min((_quota(folder, is_v1=is_v1) for folder, is_v1 in groups), default=math.inf)


def _quota(folder: Path, *, is_v1: bool) -> float:
    # cpu.max contains a quota and a period, such as "150000 100000", or "max 100000".
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
    match [word for name in names for word in text_of(folder / name).split()]:
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return math.inf
