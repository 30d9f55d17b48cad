"""Refuses --deterministic and --kv-cache-dtype int8 for models that do not run through the compiled CPU code.

That code is the only one whose logits are deterministic (``Model.is_deterministic``), and that reads K/V in int8.
"""

from __future__ import annotations

import torch

from ebbtide.config import RunnerConfig
from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles

UNEVEN_HEADS = "its head size is not a multiple of 16"


def require_compiled(files: ModelFiles, config: RunnerConfig, reason: str | None) -> None:
    """Raise StartupError if a flag needs the compiled CPU code and a ``reason`` says why the model cannot use it."""
    needs = {
        "--deterministic": (config.deterministic, "is deterministic"),
        "--kv-cache-dtype int8": (config.kv_cache_dtype == "int8", "supports it"),
    }
    for flag, (is_set, ability) in needs.items():
        if is_set and reason is not None:
            raise StartupError(
                f"{flag} is not supported for {files.name} with these settings: {reason}. The compiled CPU code in "
                f"bfloat16 for Llama, Mistral, Qwen2 and Qwen3 {ability}."
            )


def obstacle(device: torch.device, dtype: torch.dtype, *, has_kernels: bool) -> str | None:
    """Return the reason, known before loading, why a model does not use the compiled code; None if there is none."""
    if device.type != "cpu":
        return "the model runs on CUDA"
    if not has_kernels:
        return "the model runs through torch"
    return None if dtype == torch.bfloat16 else f"the model runs in {str(dtype).removeprefix('torch.')}"
