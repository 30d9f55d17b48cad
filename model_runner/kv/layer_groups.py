"""Divides the layers of a model among KV pools by the part of the context that they read.

The module does not depend on models, devices or the element type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.config import RunnerConfig
from ebbtide.messages import SWA_POOL, PoolInfo
from ebbtide.paging import window_pool_pages, window_pool_ratio


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers of each KV pool.

    Attributes:
        full: the layers in the first pool.
        windowed: the layers in the pool of the sliding window; empty if there is only one pool.
        window: the largest window of ``windowed``, in tokens; 0 if there is only one pool.
        ratio: tokens of the window's pool per token of the first pool.
    """

    full: tuple[int, ...]
    windowed: tuple[int, ...] = ()
    window: int = 0
    ratio: float = 1.0

    @property
    def layers(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each pool, in the order of ``RunnerInfo.pools``."""
        return (self.full, self.windowed) if self.windowed else (self.full,)

    def pools(self, num_pages: int, page_size: int) -> tuple[PoolInfo, ...]:
        """Return all pools if the first one has ``num_pages`` pages."""
        first = PoolInfo(num_pages, page_size)
        if not self.windowed:
            return (first,)
        count = window_pool_pages(self.window, num_pages=num_pages, page_size=page_size, ratio=self.ratio)
        return first, PoolInfo(count, page_size, SWA_POOL, self.window)

    def num_bytes(self, num_pages: int, page_size: int, layer_token_bytes: int) -> int:
        """Return the size of all pools if the first one has ``num_pages`` pages.

        layer_token_bytes: size of one token's K/V in one layer.
        """
        pools = self.pools(num_pages, page_size)
        tokens = [pool.num_pages * page_size * len(layers) for pool, layers in zip(pools, self.layers, strict=True)]
        return sum(tokens) * layer_token_bytes


def group_layers(
    windows: Sequence[int | None], context_length: int, ratio: float | None, obstacle: str | None
) -> tuple[LayerGroups, str]:
    """Return the groups, and a sentence for the log; "" if no layer has a window that is shorter than the context.

    Args:
        windows: the sliding window of each layer; None for layers that read all tokens.
        ratio: see ``LayerGroups``; None for the default.
        obstacle: reason why all layers must share one pool; None if there is no such reason.
    """
    every = tuple(range(len(windows)))
    windowed = tuple(layer for layer in every if (windows[layer] or context_length) < context_length)
    if not windowed:
        return LayerGroups(every), ""
    what = f"{len(windowed)} of {len(windows)} layers read a sliding window"
    if obstacle is not None:
        return LayerGroups(every), f"{what}, but keep the K/V of all tokens: {obstacle}"
    window = max(windows[layer] or 0 for layer in windowed)
    full = tuple(layer for layer in every if layer not in windowed)
    # A first pool without layers needs no memory, so the smallest default applies.
    ratio = window_pool_ratio(window if full else 0, ratio)
    groups = LayerGroups(full, windowed, window, ratio)
    return groups, f"{what} of {window} tokens and have a KV pool of their own (--swa-full-tokens-ratio {ratio:g})"


def one_pool_reason(config: RunnerConfig, backend: str) -> str | None:
    """Return why layers with a sliding window cannot have a pool of their own; None if they can.

    backend: name of the attention backend.
    """
    if config.disable_hybrid_swa_memory:
        return "--disable-hybrid-swa-memory"
    if backend == "flash_attn":
        return "the attention backend flash_attn reads memory before the window"
    return None
