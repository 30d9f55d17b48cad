"""Lists the architectures with a native implementation, and loads models."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import cast

import torch

from ebbtide.errors import StartupError

from ..checkpoint.weights import Checkpoint
from ..kernels.llama_forward import load_kernels
from ..kernels.native_build import BuildError
from ..tensor_parallel.group import Group
from .llama_fields import READ_BY, refuse_unread_fields
from .model import CompiledModule, Model, ModelModule, ParallelModule, Quantization, refuse_int8

log = logging.getLogger(__name__)

# Name of the architecture's class in transformers → module in this folder. All other architectures run through
# transformers' own code.
NATIVE: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "llama",
    "Gemma2ForCausalLM": "gemma",
    "Gemma3ForCausalLM": "gemma",
    "Lfm2ForCausalLM": "lfm2",
    "FalconH1ForCausalLM": "falcon_h1",
}
FALLBACK = "transformers_backed"
# Module → the module with compiled bfloat16 code for the CPU, which is used with the attention backend "cpu".
COMPILED = {"llama": "llama_native"}
# Modules whose weights tensor-parallel ranks can share.
PARALLEL = {"llama"}


def check_architecture(checkpoint: Checkpoint, num_ranks: int = 1) -> None:
    """Raise StartupError if the class, the configuration or the stored tensors show that the model is not supported.

    num_ranks: number of tensor-parallel ranks.
    """
    if num_ranks > 1 and _module(checkpoint) not in PARALLEL:
        raise StartupError(f"--tp {num_ranks} is not supported for {checkpoint.architecture} models (docs/models.md).")
    if checkpoint.is_dummy and (checkpoint.gguf is not None or _module(checkpoint) == FALLBACK):
        raise StartupError(
            f"--load-format dummy is not supported for {checkpoint.files.name}: it needs a folder with the config.json "
            "of a model of the Llama family."
        )
    if _module(checkpoint) == FALLBACK:
        from .transformers_backed import check_config

        check_config(checkpoint.architecture, checkpoint.config)
    elif checkpoint.gguf is None:
        refuse_unread_fields(checkpoint.fields, checkpoint.config.model_type, str(checkpoint.directory / "config.json"))
    if checkpoint.gguf is None:
        _refuse_quantized(checkpoint)
    if not checkpoint.is_dummy:
        _check_num_layers(checkpoint)


def has_compiled_code(checkpoint: Checkpoint, backend: str) -> bool:
    """Return True if the compiled bfloat16 code can run the model. The CPU does not need bfloat16 instructions for it.

    backend: the requested attention backend. The compiled code includes its own attention and is therefore used only
        with "auto" and "cpu".
    """
    if checkpoint.is_dummy or backend not in ("auto", "cpu") or _module(checkpoint) not in COMPILED:
        return False
    try:
        load_kernels()
    except BuildError as error:
        log.warning("The model runs through torch, which is slower: %s.", error)
        return False
    return True


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    compiled: bool = False,
    quantization: Quantization = "none",
    group: Group | None = None,
) -> Model:
    """Load a checkpoint with native code if ``NATIVE`` has its architecture, else through transformers.

    compiled: True to use the compiled CPU code; see ``has_compiled_code``.
    quantization: format of the weights in the compiled code. Other code dequantizes all weights.
    group: the tensor-parallel ranks, for a module in ``PARALLEL``; None for one process.

    Raises StartupError if the model is not supported, or if int8 is requested without compiled code.
    """
    name = _module(checkpoint)
    if compiled:
        with_kernels = cast(CompiledModule, import_module(f".{COMPILED[name]}", __package__))
        return with_kernels.load(checkpoint, dtype=dtype, device=device, quantization=quantization)
    refuse_int8(quantization, checkpoint.files.name)
    if group is not None:
        parallel = cast(ParallelModule, import_module(f".{name}", __package__))
        return parallel.load(checkpoint, dtype=dtype, device=device, group=group)
    module = cast(ModelModule, import_module(f".{name}", __package__))
    return module.load(checkpoint, dtype=dtype, device=device)


def _module(checkpoint: Checkpoint) -> str:
    # As in transformers, ``model_type`` selects the implementation: the class name may be that of a related family.
    is_native = checkpoint.config.model_type in READ_BY
    return NATIVE.get(checkpoint.architecture, FALLBACK) if is_native else FALLBACK


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    method = checkpoint.quantization_method()
    if method is not None:
        raise StartupError(f"The model {checkpoint.files.name} is not supported: its weights are quantized ({method}).")


def _check_num_layers(checkpoint: Checkpoint) -> None:
    """Raise StartupError if there are more layers than tensors. Creating that many layers could exhaust the memory."""
    num_layers = getattr(checkpoint.config.get_text_config(), "num_hidden_layers", 0)
    num_tensors = len(checkpoint.shapes(()))
    if isinstance(num_layers, int) and num_layers > num_tensors:
        raise StartupError(
            f"The weights of {checkpoint.files.name} have {num_tensors} tensors in all, too few for the {num_layers} "
            "layers (num_hidden_layers) of its configuration."
        )
