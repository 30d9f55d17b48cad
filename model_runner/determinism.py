"""Implements --deterministic: refuses a model whose logits are not deterministic (``Model.is_deterministic``)."""

from __future__ import annotations

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles

UNEVEN_HEADS = "its head size is not a multiple of 16"


def require_deterministic(files: ModelFiles, config: RunnerConfig, reason: str | None) -> None:
    """Raise StartupError if ``--deterministic`` is set and there is a ``reason`` why the model is not deterministic."""
    if config.deterministic and reason is not None:
        raise StartupError(
            f"--deterministic is not supported for {files.name} with these settings: {reason}. The compiled CPU "
            "code in bfloat16 for Llama, Mistral, Qwen2 and Qwen3 is deterministic."
        )


def obstacle(device: torch.device, dtype: torch.dtype, *, has_kernels: bool) -> str | None:
    """Return the reason, known before loading, why a model is not deterministic; None if no such reason is known."""
    if device.type != "cpu":
        return "the model runs on CUDA"
    if not has_kernels:
        return "the model runs through torch"
    return None if dtype == torch.bfloat16 else f"the model runs in {str(dtype).removeprefix('torch.')}"
