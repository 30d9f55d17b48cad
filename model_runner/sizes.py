"""Chooses the context length, and the layers and sizes of the KV pools, at start."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.messages import MAMBA_POOL, PoolInfo, RunnerInfo

from .checkpoint.weights import Checkpoint
from .context import longest_context
from .kv.host_pages import bytes_per_page, num_host_pages
from .kv.kv_pool import KVPool
from .kv.layer_groups import group_layers, one_pool_reason
from .kv.memory import PoolBudget, pool_limit
from .kv.page_table import PageTable
from .kv.state_memory import StateMemory
from .models.model import Model
from .tensor_parallel.group import Group

log = logging.getLogger(__name__)


def choose_context_length(checkpoint: Checkpoint, asked: int | None) -> int:
    """Return ``asked``, or the model's maximum context length if it is None. Raises StartupError if out of range."""
    longest = longest_context(checkpoint.config)
    if asked is None:
        return longest
    if not 1 <= asked <= longest:
        raise StartupError(f"--context-length {asked} is not within the model's range of 1 to {longest} tokens.")
    return asked


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """The requirements on the KV pools: type, device, memory, and the attention backend that reads them.

    Attributes:
        dtype: the element type of the model, which --kv-cache-dtype can replace.
        free_bytes: as in ``PoolBudget``.
        group: the tensor-parallel ranks, whose pools have equal numbers of pages; None for one process.
        backend: name of the attention backend.
        num_padding_pages: number of extra pages at the end of each pool, for padding rows of decode graphs.
    """

    dtype: torch.dtype
    device: torch.device
    free_bytes: int
    group: Group | None
    backend: str
    context_length: int
    num_padding_pages: int


@dataclass(frozen=True, slots=True)
class Pools:
    """The KV pools, in the order of ``RunnerInfo.pools``, which the pool of recurrent states follows.

    Attributes:
        infos: their sizes without padding pages.
        states: the recurrent states; None for a model without them.
    """

    infos: tuple[PoolInfo, ...]
    kv: tuple[KVPool, ...]
    states: StateMemory | None = None

    @property
    def num_bytes(self) -> int:
        """Size of all pools in bytes."""
        return sum(pool.num_bytes for pool in self.kv) + (0 if self.states is None else self.states.data.nbytes)

    def host_page_counts(self, kv_offload_gb: float, free_bytes: int) -> tuple[int, ...]:
        """Return the number of host pages for each pool, in the proportion of the pools; () without a host tier.

        free_bytes: free host memory. Raises StartupError if ``kv_offload_gb`` GiB are too little or too much.
        """
        first = self.infos[0].num_pages
        sizes = [bytes_per_page(pool) * info.num_pages for pool, info in zip(self.kv, self.infos, strict=True)]
        count = num_host_pages(kv_offload_gb, -(-sum(sizes) // first), free_bytes)
        return tuple(-(-count * info.num_pages // first) for info in self.infos) if count else ()

    def all_infos(self, context_length: int) -> tuple[PoolInfo, ...]:
        """Return ``RunnerInfo.pools``."""
        if self.states is None:
            return self.infos
        return (*self.infos, PoolInfo(self.states.num_slots, context_length, MAMBA_POOL))

    def page_tables(self, info: RunnerInfo, device: torch.device) -> list[PageTable]:
        """Allocate one page table per KV pool."""
        return [
            PageTable(info.num_rows, info.context_length, pool, device=device, number=number)
            for number, pool in enumerate(self.infos)
        ]


def build_pools(model: Model, config: RunnerConfig, wanted: PoolRequest) -> Pools:
    """Decide which layers share a KV pool, log it, and allocate the pools."""
    shape, page_size = model.kv_shape, config.tokens_per_page
    dtype = torch.int8 if config.kv_cache_dtype == "int8" else wanted.dtype
    obstacle = one_pool_reason(config, wanted.backend)
    groups, sentence = group_layers(model.windows, wanted.context_length, config.swa_full_tokens_ratio, obstacle)
    if sentence:
        log.info("%s", sentence)
    layer_token_bytes = shape.token_bytes(dtype) // shape.num_layers
    states = _build_states(model, config, wanted)
    budget = PoolBudget(
        free_bytes=wanted.free_bytes - (0 if states is None else states.data.nbytes),
        weight_bytes=model.weight_bytes,
        fraction=config.mem_fraction_static,
        size_of=lambda num_pages: groups.num_bytes(num_pages, page_size, layer_token_bytes),
        page_size=page_size,
        limit_bytes=pool_limit(wanted.device, num_ranks=config.tp),
        max_total_tokens=config.max_total_tokens,
    )
    num_pages = budget.num_pages()
    if wanted.group is not None:
        num_pages = wanted.group.minimum(num_pages, wanted.device)
    infos = groups.pools(num_pages, page_size)
    counts = [info.num_pages + wanted.num_padding_pages for info in infos]
    pools = [
        KVPool(shape, count, page_size, dtype=dtype, device=wanted.device, layers=layers)
        for count, layers in zip(counts, groups.layers, strict=True)
    ]
    return Pools(infos, tuple(pools), states)


def _build_states(model: Model, config: RunnerConfig, wanted: PoolRequest) -> StateMemory | None:
    """Allocate the slots of recurrent states. Returns None for a model without them."""
    shape = model.state_shape
    if shape is None:
        return None
    num_slots = config.max_states or 2 * config.max_running_requests
    log.info(
        "%d layers have a recurrent state: %d states of %.1f KiB per request (--max-states)",
        shape.num_layers,
        num_slots,
        shape.num_bytes(wanted.dtype) / 1024,
    )
    return StateMemory(shape, num_slots, config.max_running_requests, dtype=wanted.dtype, device=wanted.device)
