"""The interfaces of a model and of a module that loads one."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from ebbtide.errors import StartupError

from ..attention import AttentionBackend
from ..batch import ForwardBatch
from ..checkpoint.weights import Checkpoint
from ..kv.kv_pool import KVShape

# "auto": GGUF's quantized weights stay as they are. "none": all weights are widened. "int8": weights that are not
# quantized are quantized to int8.
Quantization = Literal["auto", "none", "int8"]


class Model(Protocol):
    """A decoder-only language model with its weights on the device."""

    @property
    def kv_shape(self) -> KVShape:
        """The shape of one token's K/V."""

    @property
    def vocab_size(self) -> int:
        """The number of logits per token."""

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights."""

    @property
    def is_deterministic(self) -> bool:
        """True if the logits of a token depend only on the tokens of its own request, bit for bit."""

    @property
    def is_capturable(self) -> bool:
        """True if ``forward`` and ``logits`` can run in a captured graph: they read no value of a tensor."""

    def adapt_threads(self) -> None:
        """Let each step use fewer threads than torch's number if earlier steps were faster so, if that is possible."""

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """Return the states of ``batch.wanted``, [W, …]. ``logits`` accepts any subset of them.

        Call ``attention.plan(batch)`` first. Runs under ``torch.inference_mode``.
        """

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [n, vocab_size], in the model's dtype or float32, of n states from ``forward``."""

    def hidden(self, states: Tensor) -> Tensor:
        """Return the hidden states after the final norm, [n, hidden], of n states of a batch with ``embeds``."""


class ModelModule(Protocol):
    """The interface of a module in the table of architectures."""

    def load(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
        """Read the weights. Raises StartupError if the architecture is not supported."""


class CompiledModule(Protocol):
    """The interface of a module with compiled code, which can keep weights quantized."""

    def load(
        self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, quantization: Quantization
    ) -> Model:
        """Read the weights. Raises StartupError if the architecture or the quantization is not supported."""


def refuse_int8(quantization: Quantization, name: str) -> None:
    """Raise StartupError if the model ``name``, which has no compiled code, should have weights in int8."""
    if quantization == "int8":
        raise StartupError(
            f"--quantization int8 is not supported for {name} with these settings: it needs the compiled code for "
            "Llama families on the CPU in bfloat16 (docs/models.md)."
        )
