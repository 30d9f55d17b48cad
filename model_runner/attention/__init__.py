"""The attention backends: one interface, one table. A backend is a module with ``unavailable`` and ``build``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

import torch
from torch import Tensor

from ebbtide.errors import StartupError

from ..batch import ForwardBatch
from ..kv.kv_pool import KVPool

log = logging.getLogger(__name__)

# Name → module, fastest first for each kind of device; ``auto`` takes the first that is available.
BACKENDS: dict[str, dict[str, str]] = {
    "cpu": {"cpu": "cpu_native", "torch": "torch_reference"},
    "cuda": {"triton": "triton_paged", "flash_attn": "flash_paged", "torch": "torch_reference"},
}


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What attention must know of one layer.

    index: the layer's place in the pool. scale: factor on the scores.
    softcap: scores become ``cap * tanh(x / cap)``; 0 is off.
    window: a query sees only the last ``window`` positions, its own included; None sees all.
    sinks: [num_heads] logits that take part in the softmax and add no value, or None.
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
    """Causal attention over the page table. One instance a runner; ``plan`` comes once per step, before ``forward``."""

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare what all layers of this step share."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerAttention) -> Tensor:
        """Store k and v, [T, kv_heads, head_dim], in the pool and attend with q, [T, heads, head_dim] → the same shape.

        q, k, v may be views whose last dimension is contiguous. The result depends on an item's own tokens only.
        """


class BackendModule(Protocol):
    """What every module of the table offers."""

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this backend cannot work here, as the end of a sentence ("it needs ..."), or None."""

    def build(self, pool: KVPool) -> AttentionBackend:
        """A backend over ``pool``."""


def choose_backend(name: str, device: torch.device, dtype: torch.dtype) -> tuple[str, BackendModule]:
    """The backend called ``name``, or for "auto" the first of the table that is available, and its name.

    Raises StartupError when there is no such backend or it cannot work here.
    """
    table = BACKENDS[device.type]
    if name == "auto":
        return _first_available(table, device, dtype)
    if name not in table:
        raise StartupError(
            f"There is no attention backend {name!r} for {device.type}; choose auto or one of {', '.join(table)}."
        )
    module = _module(table[name])
    reason = module.unavailable(device, dtype)
    if reason is not None:
        raise StartupError(f"The attention backend {name!r} cannot be used: {reason}.")
    return name, module


def _first_available(table: dict[str, str], device: torch.device, dtype: torch.dtype) -> tuple[str, BackendModule]:
    for name, path in table.items():
        module = _module(path)
        reason = module.unavailable(device, dtype)
        if reason is None:
            return name, module
        log.info("attention backend %s is not used: %s", name, reason)
    raise StartupError(f"No attention backend works on {device.type} with {dtype}.")


def _module(path: str) -> BackendModule:
    return cast(BackendModule, import_module(f".{path}", __package__))
