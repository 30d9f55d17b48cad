"""Attention over several KV pools: each layer uses the backend of the pool that has its K/V."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ..batch import ForwardBatch, PoolPlaces
from ..kv.kv_pool import KVPool
from . import AttentionBackend, BackendModule, LayerAttention


class PooledAttention:
    """One backend per pool that has layers. If all layers have a window, the first pool has none."""

    def __init__(self, pools: Sequence[KVPool], module: BackendModule) -> None:
        """pools: in the order of ``RunnerInfo.pools``."""
        self.pools = tuple(pools)
        self._parts = [module.build(pool) if pool.index_of else None for pool in pools]
        self._backends = {
            layer: part for part, pool in zip(self._parts, pools, strict=True) if part for layer in pool.index_of
        }

    def plan(self, batch: ForwardBatch) -> None:
        """See ``AttentionBackend``."""
        places = [PoolPlaces(batch.slots, batch.page_table), *batch.more_pools]
        for part, place in zip(self._parts, places, strict=True):
            if part is not None:
                part.plan(replace(batch, slots=place.slots, page_table=place.page_table, more_pools=[]))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """See ``AttentionBackend``."""
        return self._backends[layer.index].forward(q, k, v, layer)


def build_attention(module: BackendModule, pools: Sequence[KVPool]) -> AttentionBackend:
    """Create the backend over ``pools``, which have the order of ``RunnerInfo.pools``."""
    return module.build(pools[0]) if len(pools) == 1 else PooledAttention(pools, module)
