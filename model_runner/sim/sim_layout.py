"""The pools of the simulated runner, from the value of ``--sim-pools``."""

from __future__ import annotations

from ebbtide.errors import StartupError
from ebbtide.messages import FULL_POOL, SWA_POOL, PoolInfo
from ebbtide.paging import window_pool_pages, window_pool_ratio


def further_pools(layout: str, num_pages: int, page_size: int, ratio: float | None) -> tuple[PoolInfo, ...]:
    """Return all pools of a layout such as ``full,swa:64`` except the first one, which must be ``full``.

    num_pages: number of pages of the full-attention pool. ratio: see ``window_pool_ratio``.
    Raises StartupError if the layout is invalid.
    """
    first, *others = layout.split(",")
    if first != FULL_POOL or len(others) > 1:
        raise _invalid(layout)
    pools = []
    for part in others:
        kind, _, size = part.partition(":")
        if kind != SWA_POOL or not (size.isascii() and size.isdigit() and len(size) < 10 and int(size)):
            raise _invalid(layout)
        window = int(size)
        share = window_pool_ratio(window, ratio)
        count = window_pool_pages(window, num_pages=num_pages, page_size=page_size, ratio=share)
        pools.append(PoolInfo(count, page_size, SWA_POOL, window))
    return tuple(pools)


def _invalid(layout: str) -> StartupError:
    return StartupError(f"--sim-pools {layout!r} is not a layout; give full, or full,swa:WINDOW with 1 token or more.")
