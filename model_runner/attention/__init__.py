"""The interface and the table of attention backends.

A backend is a module with the functions ``unavailable`` and ``build``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

import torch
from torch import Tensor

from ebbtide.config import PAGE_SIZE
from ebbtide.errors import StartupError

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool

log = logging.getLogger(__name__)

# Device type → backend name → module, the fastest first. "auto" selects the first backend that is available.
BACKENDS: dict[str, dict[str, str]] = {
    "cpu": {"cpu": "cpu_native", "torch": "torch_reference"},
    "cuda": {"triton": "triton_paged", "flash_attn": "flash_paged", "torch": "torch_reference"},
}
# Names of the backends that can run in a captured graph, because their kernels read all lengths from tensors.
CAPTURABLE = {"triton", "flash_attn", "cpu"}


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The attention parameters of one layer.

    Attributes:
        index: number of the layer in the model.
        scale: factor by which the scores (dot products of queries and keys) are multiplied.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 turns it off.
        window: a query attends to the last ``window`` positions, including its own; None for all positions.
        sinks: [num_heads], one additional softmax logit per head, without a value vector; None for no sinks.
    """

    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float = 0.0
    window: int | None = None
    sinks: Tensor | None = None


class AttentionBackend(Protocol):
    """Causal attention over the page table. Call ``plan`` once per step, then ``forward`` for each layer."""

    @property
    def pools(self) -> tuple[KVPool, ...]:
        """The pools whose K/V the backend reads and writes, in the order of ``RunnerInfo.pools``."""

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare the metadata that all layers of a step share."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """Store k and v in the pool, and return the attention output of q, [T, heads, head_dim].

        q: [T, heads, head_dim]. k, v: [T, kv_heads, head_dim]. Only their last dimension must be contiguous. The result
        of an item depends only on the item's own tokens. In a layer with a window, the pages before the window of the
        item's first query may belong to other requests and contain NaN.
        """


class BackendModule(Protocol):
    """The interface of a backend module in the table.

    Attributes:
        PAGE_MULTIPLE: the number of tokens of a page must be a multiple of this number.
    """

    PAGE_MULTIPLE: int

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return the reason why this backend cannot be used, such as "it needs …"; None if it can be used."""

    def build(self, pool: KVPool) -> AttentionBackend:
        """Create the backend over ``pool``."""


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, page_size: int = PAGE_SIZE
) -> tuple[str, BackendModule]:
    """Return the name and the module of the backend ``name``.

    "auto" selects the first backend that is available and supports ``page_size``, in tokens.
    Raises StartupError if the backend does not exist or is not available.
    """
    table = BACKENDS[device.type]
    if name == "auto":
        return _first_available(table, device, dtype, page_size)
    if name not in table:
        raise StartupError(
            f"There is no attention backend {name!r} for {device.type}; choose auto or one of {', '.join(table)}."
        )
    module = _module(table[name])
    reason = module.unavailable(device, dtype)
    if reason is not None:
        raise StartupError(f"The attention backend {name!r} cannot be used: {reason}.")
    return name, module


def _first_available(
    table: dict[str, str], device: torch.device, dtype: torch.dtype, page_size: int
) -> tuple[str, BackendModule]:
    for name, path in table.items():
        module = _module(path)
        reason = module.unavailable(device, dtype)
        if reason is None and page_size % module.PAGE_MULTIPLE:
            reason = f"it needs a --page-size that is a multiple of {module.PAGE_MULTIPLE}"
        if reason is None:
            return name, module
        log.info("attention backend %s is not used: %s", name, reason)
    raise StartupError(f"No attention backend works on {device.type} with {dtype}.")


def _module(path: str) -> BackendModule:
    return cast(BackendModule, import_module(f".{path}", __package__))
