"""The interface of a model, and of the modules that load one."""

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
