"""The size of a model, read from its configuration and from the headers of its weight files.

The KV size assumes multi-head or grouped-query attention in every layer, except those that the configuration describes
as convolutions or recurrences. It is unknown for a model whose configuration lacks the usual fields. The module reads
no weights and does not import torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide.tokenization.gguf_header import StoredArray, read_header
from ebbtide.tokenization.model_files import ModelFiles, one_line, read_json_object, split_parts

from ...errors import StartupError

MAX_HEADER_BYTES = 100 << 20
WITHOUT_KV = {"conv", "mamba", "mamba2", "recurrent", "linear_attention"}  # values of layer_types


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The properties that determine how much memory a model needs. A value is None if the files do not contain it.

    Attributes:
        num_parameters: number of elements of all tensors.
        context_length: maximum length in tokens.
        kv_numbers: number of elements of the KV cache per token, over all layers.
        file_bytes: size of the weight files in bytes.
        types: names of the tensor types of the weights.
    """

    architecture: str
    num_parameters: int
    context_length: int | None
    kv_numbers: int | None
    file_bytes: int
    types: tuple[str, ...]


def read_facts(files: ModelFiles) -> ModelFacts:
    """Read the properties of a model on the disk. Raises StartupError if a file is missing or damaged."""
    return _gguf_facts(files) if files.gguf else _safetensors_facts(Path(files.directory))


def _gguf_facts(files: ModelFiles) -> ModelFacts:
    from gguf import GGMLQuantizationType

    paths = [Path(files.directory, part) for part in split_parts(files.gguf or "")]
    headers = [read_header(path) for path in paths]
    metadata = headers[0].metadata
    architecture = str(metadata.get("general.architecture", "unknown"))

    def number(key: str) -> int | None:
        value = metadata.get(f"{architecture}.{key}")
        return value if isinstance(value, int) else None

    heads, hidden = number("attention.head_count"), number("embedding_length")
    layers = number("block_count")
    by_layer = f"{architecture}.attention.head_count_kv"
    kv_heads = (number("attention.head_count_kv") or heads or 0) * (layers or 0)  # over all layers
    if isinstance(metadata.get(by_layer), StoredArray):  # 0 for a layer without attention
        kv_heads = sum(int(count) for count in headers[0].array(by_layer))
    key = number("attention.key_length") or (hidden // heads if hidden and heads else None)
    value = number("attention.value_length") or key
    tensors = [tensor for header in headers for tensor in header.tensors]
    return ModelFacts(
        architecture,
        sum(math.prod(tensor.shape) for tensor in tensors),
        number("context_length"),
        kv_heads * (key + value) if kv_heads and key and value else None,
        sum(path.stat().st_size for path in paths),
        tuple(sorted({GGMLQuantizationType(tensor.kind).name for tensor in tensors})),
    )


def _safetensors_facts(folder: Path) -> ModelFacts:
    config = read_json_object(folder / "config.json")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    paths = _weights(folder)
    tensors = [tensor for path in paths for tensor in _tensors(path)]
    architectures = config.get("architectures") or [config.get("model_type", "unknown")]
    return ModelFacts(
        str(architectures[0]),
        sum(math.prod(tensor["shape"]) for tensor in tensors),
        _integer(text, "max_position_embeddings"),
        _kv_numbers(text),
        sum(path.stat().st_size for path in paths),
        tuple(sorted({str(tensor["dtype"]) for tensor in tensors})),
    )


def _weights(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file() or not index.is_file():
        names: Iterable[str] = [single.name]
    else:
        names = set(read_json_object(index)["weight_map"].values())
    paths = sorted(folder / name for name in names)
    for path in paths:
        if not path.is_file():
            raise StartupError(f"The weights file {path} does not exist.")
    return paths


def _tensors(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a safetensors file's header, one per tensor."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"its header has {length} bytes")
            header = json.loads(file.read(length))
        return [entry for name, entry in header.items() if name != "__metadata__"]
    except (OSError, ValueError, struct.error, AttributeError) as error:
        raise StartupError(f"The weights file {path} is damaged: {one_line(error)}.") from error


def _kv_numbers(config: Any) -> int | None:
    layers, heads = _num_attention_layers(config), _integer(config, "num_attention_heads")
    hidden = _integer(config, "hidden_size")
    if "kv_lora_rank" in config or not (layers and heads and hidden):
        return None
    kv_heads = _integer(config, "num_key_value_heads") or heads
    return 2 * layers * kv_heads * (_integer(config, "head_dim") or hidden // heads)


def _num_attention_layers(config: Any) -> int | None:
    kinds, indices = config.get("layer_types"), config.get("full_attn_idxs")
    if isinstance(kinds, list):
        return sum(kind not in WITHOUT_KV for kind in kinds)
    return len(indices) if isinstance(indices, list) else _integer(config, "num_hidden_layers")


def _integer(config: Any, key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) else None
