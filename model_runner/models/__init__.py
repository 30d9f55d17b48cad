"""The table of architectures with a native implementation; loads models by it."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import torch

from ..checkpoint.weights import Checkpoint
from .model import Model, ModelModule

# Architecture class in transformers → module here. All others run through transformers' own code.
NATIVE: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "llama",
}
FALLBACK = "transformers_backed"


def check_architecture(checkpoint: Checkpoint) -> None:
    """Raises StartupError if class or configuration show that a model is not supported."""
    if checkpoint.architecture not in NATIVE:
        from .transformers_backed import check_config

        check_config(checkpoint.architecture, checkpoint.config)


def load_model(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Model:
    """Load a checkpoint: natively if the table has its architecture, else through transformers."""
    module = cast(ModelModule, import_module(f".{NATIVE.get(checkpoint.architecture, FALLBACK)}", __package__))
    return module.load(checkpoint, dtype=dtype, device=device)
