"""The pools of the simulated runner, from the value of ``--sim-pools``."""

from __future__ import annotations

from ebbtide.errors import StartupError
from ebbtide.messages import FULL_POOL, MAMBA_POOL, SWA_POOL, PoolInfo
from ebbtide.paging import window_pool_pages, window_pool_ratio


def further_pools(layout: str, first: PoolInfo, ratio: float | None, context_length: int) -> tuple[PoolInfo, ...]:
    """Return all pools of a layout such as ``full,swa:64,mamba:8`` except the first one, which must be ``full``.

    Args:
        first: the full-attention pool.
        ratio: see ``window_pool_ratio``.

    Raises:
        StartupError: the layout is invalid.
    """
    name, *others = layout.split(",")
    kinds = [part.partition(":")[0] for part in others]
    if name != FULL_POOL or kinds not in ([], [SWA_POOL], [MAMBA_POOL], [SWA_POOL, MAMBA_POOL]):
        raise _invalid(layout)
    pools = []
    for kind, part in zip(kinds, others, strict=True):
        size = part.partition(":")[2]
        if not (size.isascii() and size.isdigit() and len(size) < 10 and int(size)):
            raise _invalid(layout)
        pools.append(
            _state_pool(int(size), context_length) if kind == MAMBA_POOL else _window_pool(int(size), first, ratio)
        )
    return tuple(pools)


def _window_pool(window: int, first: PoolInfo, ratio: float | None) -> PoolInfo:
    share = window_pool_ratio(window, ratio)
    count = window_pool_pages(window, num_pages=first.num_pages, page_size=first.page_size, ratio=share)
    return PoolInfo(count, first.page_size, SWA_POOL, window)


def _state_pool(num_slots: int, context_length: int) -> PoolInfo:
    return PoolInfo(num_slots, context_length, MAMBA_POOL)


def _invalid(layout: str) -> StartupError:
    return StartupError(
        f"--sim-pools {layout!r} is not a layout; give full, or full and after it swa:WINDOW (in tokens), mamba:SLOTS, "
        "or both in this order, such as full,swa:64,mamba:8."
    )
