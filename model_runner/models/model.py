"""The interfaces of a model and of a module that loads one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape


class Model(Protocol):
    """A decoder-only language model with its weights on the device."""

    @property
    def kv_shape(self) -> KVShape:
        """The shape of one token's K/V."""

    @property
    def vocab_size(self) -> int:
        """Length of a row of logits."""

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """States of ``batch.wanted``, [W, …]; ``logits`` accepts any part of them.

        Call ``attention.plan(batch)`` first. Runs under ``torch.inference_mode``.
        """

    def logits(self, states: Tensor) -> Tensor:
        """Logits [n, vocab_size], in the model's dtype or float32, of n states that ``forward`` returned."""


class ModelModule(Protocol):
    """The interface of the modules in the table of architectures."""

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
        """Read the weights. Raises StartupError if the architecture is not supported."""
