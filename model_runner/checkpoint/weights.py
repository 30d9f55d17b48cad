"""A checkpoint on disk: configuration, and tensors under Hugging Face names.

The module does not depend on models or devices.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ebbtide.errors import StartupError
from ebbtide.progress import Progress, counted, no_progress
from ebbtide.tokenization.model_files import ModelFiles, one_line, read_json_object, token_ids

from .gguf_file import GGUFFile
from .model_config import ModelConfig
from .native_config import ARCHITECTURES, read_native
from .quantization import quantization_method
from .quantized_rows import QuantizedRows
from .safetensors_files import SafetensorsFiles

log = logging.getLogger(__name__)

W = TypeVar("W")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; the weights are still on disk.

    Attributes:
        files: location of the checkpoint.
        config: the configuration; read by ``native_config`` if possible, else by transformers.
        architecture: name of the model's class in transformers.
        stored_dtype: element type of the weights on disk; None if they are quantized or the configuration does not
            state it.
        eos_token_ids: the ids of the tokens that end a text or a turn.
        gguf: the GGUF file; None for a folder with safetensors.
        fields: the fields of config.json, unchanged; empty for a GGUF file.
        is_dummy: True if the weights are random numbers and not read: the folder needs only config.json.
        progress: called while the weights are read.
    """

    files: ModelFiles
    config: ModelConfig
    architecture: str
    stored_dtype: torch.dtype | None
    eos_token_ids: tuple[int, ...]
    gguf: GGUFFile | None
    fields: dict[str, Any] = field(default_factory=dict)
    is_dummy: bool = False
    progress: Progress = no_progress

    @property
    def directory(self) -> Path:
        """The folder of the checkpoint."""
        return Path(self.files.directory)

    def tensors(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and values of each weight on the CPU, one at a time. GGUF tensors are dequantized to float32.

        wanted: the names of the model's parameters, to which the tensor names of a GGUF file are mapped.
        """
        return self._counted(self.safetensors.tensors() if self.gguf is None else self.gguf.tensors(wanted), wanted)

    def stored_weights(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor | QuantizedRows]]:
        """Yield the same as ``tensors``, but keep a matrix quantized if its format is in ``quantized_rows.KINDS``."""
        stored = self.safetensors.tensors() if self.gguf is None else self.gguf.stored_weights(wanted)
        return self._counted(stored, wanted)

    def shapes(self, wanted: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return name → shape of all stored tensors. wanted: see ``tensors``."""
        return self.safetensors.shapes() if self.gguf is None else self.gguf.shapes(wanted)

    def _counted(self, weights: Iterator[tuple[str, W]], wanted: Collection[str]) -> Iterator[tuple[str, W]]:
        """Yield ``weights`` and report how many of their elements have been read."""
        sizes = {name: prod(shape) for name, shape in self.shapes(wanted).items()}
        return counted(
            weights,
            lambda weight: sizes.get(weight[0], 0),
            sum(sizes.values()),
            partial(self.progress, f"Reading the weights ({self.architecture})"),
        )

    @cached_property
    def safetensors(self) -> SafetensorsFiles:
        """The weights of a folder. Raises StartupError if a file is missing or damaged."""
        return SafetensorsFiles(self.directory)

    def quantization_method(self) -> str | None:
        """Return the quantization method of safetensors weights; None if they are not quantized."""
        stated = quantization_method(self.fields)
        return stated if stated is not None or self.is_dummy else self.safetensors.quantization_method()

    def eos_ids_of(self, vocab_size: int) -> tuple[int, ...]:
        """Return the ``eos_token_ids`` that a model with ``vocab_size`` tokens can produce. Warn about the others."""
        impossible = [token for token in self.eos_token_ids if not 0 <= token < vocab_size]
        if impossible:
            log.warning(
                "%s: the end-of-text ids %s are ignored, because the model has only %d tokens",
                self.files.name,
                impossible,
                vocab_size,
            )
        return tuple(token for token in self.eos_token_ids if 0 <= token < vocab_size)


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Open a checkpoint and read its configuration. Raises StartupError if the configuration cannot be read."""
    if files.gguf is not None:
        return _open_gguf(files, files.gguf)
    directory = Path(files.directory)
    fields = read_json_object(directory / "config.json")
    config = read_native(fields) or _transformers_config(directory)
    return Checkpoint(
        files=files,
        config=config,
        architecture=_architecture(files, config),
        stored_dtype=config.dtype,
        eos_token_ids=_eos_of_folder(directory, config),
        gguf=None,
        fields=fields,
    )


def _transformers_config(directory: Path) -> ModelConfig:
    from .config_file import read_config  # imports transformers
    from .rotary_check import check_rotary

    config: ModelConfig = read_config(directory / "config.json")
    check_rotary(config, str(directory / "config.json"))
    return config


def _open_gguf(files: ModelFiles, file: str) -> Checkpoint:
    gguf = GGUFFile(Path(files.directory), file)
    config = _gguf_config(gguf)
    return Checkpoint(
        files=files,
        config=config,
        architecture=_architecture(files, config),
        stored_dtype=None,
        eos_token_ids=tuple(sorted(token_ids(config.eos_token_id, file) | gguf.eos_token_ids())),
        gguf=gguf,
    )


def _gguf_config(gguf: GGUFFile) -> ModelConfig:
    fields = gguf.config_fields
    config = read_native(fields)
    if config is not None:
        return config
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    from .rotary_check import check_rotary

    try:
        other: ModelConfig = AutoConfig.for_model(**fields)
    except (StrictDataclassError, ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise StartupError(
            f"The GGUF file {gguf.path} cannot be served: its metadata is not valid: {one_line(error)}."
        ) from error
    check_rotary(other, str(gguf.path))
    return other


def _architecture(files: ModelFiles, config: ModelConfig) -> str:
    if config.architectures:
        return str(config.architectures[0])
    if config.model_type in ARCHITECTURES:
        return ARCHITECTURES[config.model_type]
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if name is None:
        raise StartupError(
            f"The model type {config.model_type!r} of {files.name} is not a decoder-only language model."
        )
    return str(name)


def _eos_of_folder(directory: Path, config: ModelConfig) -> tuple[int, ...]:
    """Return the end token ids in generation_config.json; if it is absent or has none, those in the configuration."""
    path = directory / "generation_config.json"
    value = read_json_object(path).get("eos_token_id") if path.is_file() else None
    where, value = (
        (path, value) if value is not None else (directory / "config.json", getattr(config, "eos_token_id", None))
    )
    return tuple(sorted(token_ids(value, str(where))))
