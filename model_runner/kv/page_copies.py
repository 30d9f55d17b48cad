"""Checks the page numbers of a plan's copies.

The module does not depend on devices or the contents of pages, and does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.errors import PlanError
from ebbtide.messages import RunnerInfo
from ebbtide.plan import PageCopies, PoolCopies


@dataclass(frozen=True, slots=True)
class OneWay:
    """The copies in one direction: from page ``sources[i]`` to page ``targets[i]``. No target occurs twice."""

    sources: list[int]
    targets: list[int]


@dataclass(frozen=True, slots=True)
class PageMoves:
    """The copies of a plan in one pool. All copies to the host precede all copies to the device."""

    to_host: OneWay
    to_device: OneWay


def checked_moves(copies: PageCopies | PoolCopies, *, num_pages: int, num_host_pages: int) -> PageMoves:
    """Return the copies of a plan in one pool by direction. Raises PlanError if a page number is out of range.

    For ``PageCopies``, the pool is the first one.
    """
    return PageMoves(
        to_host=_one_way(copies.to_host, "to the host", num_pages, num_host_pages),
        to_device=_one_way(copies.to_device, "to the device", num_host_pages, num_pages),
    )


def moves_by_pool(copies: PageCopies, info: RunnerInfo) -> list[tuple[int, PageMoves]]:
    """Return the copies of a plan in each pool, with the pool's index.

    Raises PlanError if a pool or a page number is out of range.
    """
    host_pages = (info.num_host_pages, *info.more_host_pages)
    found: list[tuple[int, PageMoves]] = []
    parts: list[tuple[int, PageCopies | PoolCopies]] = [(0, copies)]
    parts += [(part.pool, part) for part in copies.more_pools]
    for number, part in parts:
        if not 0 <= number < len(host_pages) or number in dict(found):
            raise PlanError(f"The copies of a plan name pool {number}, which has no host pages or is named twice.")
        sizes = {"num_pages": info.pools[number].num_pages, "num_host_pages": host_pages[number]}
        found.append((number, checked_moves(part, **sizes)))
    return found


def _one_way(flat: Sequence[int], way: str, num_sources: int, num_targets: int) -> OneWay:
    if len(flat) % 2:
        raise PlanError(f"The copies {way} are not pairs of pages: the list has {len(flat)} entries.")
    # If two copies have the same target page, only the later one is made: the request of the earlier copy ended before
    # the plan was complete.
    last_source = dict(zip(flat[1::2], flat[::2], strict=True))
    for target, source in last_source.items():
        if not (0 <= source < num_sources and 0 <= target < num_targets):
            raise PlanError(
                f"A copy {way} from page {source} of {num_sources} to page {target} of {num_targets} is out of range."
            )
    return OneWay(list(last_source.values()), list(last_source))
