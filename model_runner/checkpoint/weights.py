"""A checkpoint on disk: configuration, and tensors under Hugging Face names. Knows neither models nor devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import ModelFiles

from .gguf_weights import GGUFFile


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint; the weights are still on disk.

    Attributes:
        files: its location.
        config: its transformers configuration.
        architecture: class name in transformers.
        stored_dtype: of the weights on disk; None if they are quantized or the configuration does not state it.
        eos_token_ids: the token ids that end a text or a turn.
        gguf: the GGUF file; None for a folder.
    """

    files: ModelFiles
    config: PretrainedConfig
    architecture: str
    stored_dtype: torch.dtype | None
    eos_token_ids: tuple[int, ...]
    gguf: GGUFFile | None

    @property
    def directory(self) -> Path:
        """The folder of the checkpoint."""
        return Path(self.files.directory)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor, one at a time, on the CPU; tensors of GGUF files are dequantized to float32."""
        if self.gguf is not None:
            yield from self.gguf.tensors()
            return
        for path in _safetensors_files(self.directory):
            yield from _read_safetensors(path)


def open_checkpoint(files: ModelFiles) -> Checkpoint:
    """Read configuration and end-of-text tokens. Raises StartupError if the configuration cannot be read."""
    gguf = None if files.gguf is None else GGUFFile(Path(files.directory) / files.gguf)
    fields = None if gguf is None else gguf.config_fields()
    # transformers needs seconds to read the configuration of a GGUF file: it parses the whole vocabulary.
    config = _read_config(files) if fields is None else AutoConfig.for_model(**fields)
    if gguf is None:
        eos = _eos_of_folder(files.directory, config)
    else:
        eos = _token_ids(config.eos_token_id) | gguf.eos_token_ids()
    return Checkpoint(
        files=files,
        config=config,
        architecture=_architecture(files, config),
        stored_dtype=None if files.gguf is not None else config.dtype,
        eos_token_ids=tuple(sorted(eos)),
        gguf=gguf,
    )


def _read_config(files: ModelFiles) -> PretrainedConfig:
    extra = {} if files.gguf is None else {"gguf_file": files.gguf}
    try:
        if files.gguf is None:
            _refuse_own_code(files)
        return AutoConfig.from_pretrained(files.directory, local_files_only=True, trust_remote_code=False, **extra)
    except (ValueError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise StartupError(f"The configuration of {files.name} cannot be read: {reason}") from error


def _refuse_own_code(files: ModelFiles) -> None:
    stored = json.loads((Path(files.directory) / "config.json").read_text())
    if "auto_map" in stored and stored.get("model_type") not in CONFIG_MAPPING:
        raise StartupError(f"The model {files.name} needs code that comes with the checkpoint; ebbtide runs none.")


def _architecture(files: ModelFiles, config: PretrainedConfig) -> str:
    if config.architectures:
        return str(config.architectures[0])
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    if name is None:
        raise StartupError(
            f"The model type {config.model_type!r} of {files.name} is not a decoder-only language model."
        )
    return str(name)


def _eos_of_folder(directory: str, config: PretrainedConfig) -> set[int]:
    if not (Path(directory) / "generation_config.json").is_file():
        return _token_ids(config.eos_token_id)
    from_generation = _token_ids(GenerationConfig.from_pretrained(directory, local_files_only=True).eos_token_id)
    return from_generation or _token_ids(config.eos_token_id)


def _token_ids(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)


def _safetensors_files(directory: Path) -> list[Path]:
    """The files of a checkpoint: those listed in its index, or the single file."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        paths = [directory / name for name in names]
    else:
        paths = [directory / "model.safetensors"]
    for path in paths:
        if not path.is_file():
            raise StartupError(f"The weights file {path} does not exist; ebbtide reads safetensors and GGUF.")
    return paths


def _read_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - safetensors files are not iterable
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise StartupError(f"The weights file {path} is damaged: {error}") from error
