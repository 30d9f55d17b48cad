"""The interfaces of models and of the modules that load them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from ebbtide.errors import StartupError

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape
from ..kv.state_memory import StateShape
from ..tensor_parallel.group import Group

# "auto": quantized GGUF weights stay quantized. "none": all weights are dequantized. "int8": as "auto", and the other
# weights are quantized to int8.
Quantization = Literal["auto", "none", "int8"]


class Model(Protocol):
    """A decoder-only language model with its weights on the device."""

    @property
    def kv_shape(self) -> KVShape:
        """The shape of one token's K/V over all layers."""

    @property
    def state_shape(self) -> StateShape | None:
        """The shape of one request's recurrent state; None for a model without recurrent layers."""

    @property
    def windows(self) -> Sequence[int | None]:
        """The sliding window of each layer of ``kv_shape``, in tokens; None for layers that read all tokens."""

    @property
    def vocab_size(self) -> int:
        """The number of logits per token."""

    @property
    def weight_bytes(self) -> int:
        """The size of the weights in bytes."""

    @property
    def is_deterministic(self) -> bool:
        """True if a request's logits are bitwise identical alone, in any batch, in any chunks and when recomputed."""

    @property
    def is_capturable(self) -> bool:
        """True if ``forward`` and ``logits`` can run in a captured graph, because the host reads no tensor values."""

    def adapt_threads(self) -> None:
        """Let each step use fewer threads than torch is set to use if earlier steps were faster with fewer threads.

        Does nothing if the model cannot change its number of threads.
        """

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """Return the states of the tokens ``batch.wanted``, [W, …]. ``logits`` accepts any subset of them.

        ``attention.plan(batch)`` must have been called. Call it under ``torch.inference_mode``.
        """

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of n states from ``forward``, [n, vocab_size], in the model's dtype or float32."""

    def hidden(self, states: Tensor) -> Tensor:
        """Return the hidden states after the final norm, [n, hidden], for n states of a batch with ``embeds``."""


class ModelModule(Protocol):
    """The interface of a module in the table of architectures."""

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
        """Load a model. Raises StartupError if its architecture is not supported."""


class CompiledModule(Protocol):
    """The interface of a module with compiled code, which can keep weights quantized."""

    def load(
        self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, quantization: Quantization
    ) -> Model:
        """Load a model. Raises StartupError if its architecture or the quantization is not supported."""


class ParallelModule(Protocol):
    """The interface of a module whose weights tensor-parallel ranks can share."""

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, group: Group) -> Model:
        """Read this rank's part of the weights. Raises StartupError if the ranks cannot share them equally."""


def refuse_int8(quantization: Quantization, name: str) -> None:
    """Raise StartupError if int8 weights are requested for the model ``name``, which has no compiled code."""
    if quantization == "int8":
        raise StartupError(
            f"--quantization int8 is not supported for {name} with these settings: it needs the compiled code for "
            "the Llama family on the CPU in bfloat16 (docs/models.md)."
        )
