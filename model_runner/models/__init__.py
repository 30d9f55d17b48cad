"""The models: one interface, one table of the architectures with a native implementation."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..kv.kv_pool import KVShape

if TYPE_CHECKING:
    from ..checkpoint.weights import Checkpoint

# Architecture class name in transformers → module here. Every other one is tried through transformers' own code.
NATIVE: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "llama",
}
FALLBACK = "transformers_backed"


class Model(Protocol):
    """A decoder-only language model with its weights on the device."""

    @property
    def kv_shape(self) -> KVShape:
        """What the pool must hold per token."""

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits."""

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """States of ``batch.wanted``, [W, …], any part of which ``logits`` takes.

        ``attention.plan(batch)`` has been called. Called under ``torch.inference_mode``.
        """

    def logits(self, states: Tensor) -> Tensor:
        """[n, vocab_size] in the model's dtype or float32, of n rows of what ``forward`` gave."""


class ModelModule(Protocol):
    """What every module of the table offers."""

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
        """Read the weights. Raises StartupError with one sentence when the architecture is not supported."""


def check_architecture(checkpoint: Checkpoint) -> None:
    """Raises StartupError with one sentence when class and configuration show that a model is not supported."""
    if checkpoint.architecture not in NATIVE:
        from .transformers_backed import check_config

        check_config(checkpoint.architecture, checkpoint.config)


def load_model(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
    """The model of a checkpoint: native if the table has its architecture, else through transformers."""
    module = cast(ModelModule, import_module(f".{NATIVE.get(checkpoint.architecture, FALLBACK)}", __package__))
    return module.load(checkpoint, dtype=dtype, device=device)
