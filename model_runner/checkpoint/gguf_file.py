"""A GGUF file, possibly split: its configuration, and its tensors under the names of the model's parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, MODEL_ARCH_NAMES, GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape
from gguf.tensor_mapping import get_tensor_name_map
from numpy.typing import NDArray
from torch import Tensor

from ebbtide.errors import StartupError
from ebbtide.tokenization.gguf_header import GGUFHeader, StoredTensor, read_header
from ebbtide.tokenization.model_files import one_line, split_parts

from .gguf_architecture import Architecture, Stored
from .gguf_architectures import ARCHITECTURES
from .gguf_fields import Fields
from .gguf_layouts import ROW_ORDERS, conv_channels
from .gguf_rope import FACTOR_TENSORS
from .quantized_rows import KINDS, QuantizedRows

EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
EMBEDDING = "token_embd.weight"
# Rotary frequencies, which early converters stored for each layer. ebbtide computes them.
DERIVED = ".attn_rot_embd.weight"


class GGUFFile:
    """A model in GGUF format; its tensors are read on demand."""

    def __init__(self, directory: Path, file: str) -> None:
        self._headers = _read_parts(directory, file)
        self._tensors = {one.name: (header.path, one) for header in self._headers for one in header.tensors}
        for header in self._headers:
            _check_extents(header)

    @property
    def path(self) -> Path:
        """The path of the file; if it is split, of its first part."""
        return self._headers[0].path

    def eos_token_ids(self) -> set[int]:
        """Return the ids of the tokens that end a text or a turn, from the tokenizer's metadata."""
        values = (self._headers[0].metadata.get(key) for key in EOS_KEYS)
        return {value for value in values if isinstance(value, int)}

    @cached_property
    def config_fields(self) -> dict[str, Any]:
        """The fields of the transformers configuration. Raises StartupError if the file is not supported."""
        if EMBEDDING not in self._tensors:
            raise StartupError(f"The GGUF file {self.path} cannot be served: it has no tensor {EMBEDDING}.")
        stored = Stored(
            names=self._tensors.keys(),
            vocab_size=self._tensors[EMBEDDING][1].shape[0],
            factors={name: self._factors(name) for name in FACTOR_TENSORS if name in self._tensors},
        )
        fields = Fields(self._headers[0], self._architecture_name)
        eos = self._headers[0].metadata.get(EOS_KEYS[0])
        # The other special token ids come from the tokenizer. transformers' defaults are ids of another vocabulary.
        return self._architecture.config(fields, stored) | {
            "eos_token_id": eos,
            "bos_token_id": None,
            "pad_token_id": None,
        }

    def tensors(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and float32 values of every tensor, one at a time.

        wanted: the names of the model's parameters, to which the tensors' names are mapped. A tensor that belongs to no
            parameter keeps its GGUF name.
        """
        names = self._names(wanted)
        for name in self._stored_names():
            yield names.get(name, name), self._tensor(name)

    def stored_weights(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor | QuantizedRows]]:
        """Yield the same as ``tensors``, but keep a matrix quantized if its format is in ``quantized_rows.KINDS``.

        A matrix is still dequantized if the converter changed more than the order of its rows.
        """
        names = self._names(wanted)
        for name in self._stored_names():
            rows = self._quantized_rows(name)
            yield names.get(name, name), self._tensor(name) if rows is None else rows

    def shapes(self, wanted: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return name → stored shape of the tensors that ``tensors`` yields, with three dimensions for a convolution.

        Other layouts may change the shape.
        """
        names = self._names(wanted)
        return {names.get(name, name): self._shape(name) for name in self._stored_names()}

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self._tensors[name][1].shape
        return (shape[0], 1, *shape[1:]) if self._architecture.layout(name) is conv_channels else shape

    def _stored_names(self) -> list[str]:
        return [name for name in self._tensors if name not in FACTOR_TENSORS and not name.endswith(DERIVED)]

    @property
    def _architecture_name(self) -> str:
        return str(self._headers[0].metadata.get("general.architecture"))

    @property
    def _architecture(self) -> Architecture:
        architecture = ARCHITECTURES.get(self._architecture_name)
        if architecture is None:
            raise StartupError(
                f"The GGUF file {self.path} cannot be served: its general.architecture is {self._architecture_name!r}, "
                f"and the supported ones are {', '.join(ARCHITECTURES)}."
            )
        return architecture

    def _names(self, wanted: Collection[str]) -> dict[str, str]:
        """Return GGUF tensor name → parameter name."""
        if not wanted:
            return {}  # the number of layers, which determines the size of the table below, might not be validated yet
        number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == self._architecture_name)
        table = get_tensor_name_map(number, self.config_fields["num_hidden_layers"])
        names = {}
        for name in wanted:
            base, _, suffix = name.rpartition(".")
            if suffix not in ("weight", "bias"):
                base, suffix = name, "weight"  # stacked experts are parameters without a module of their own
            stored = table.get_name(self._architecture.renamed_name(base))
            if stored is not None:
                names[f"{stored}.{suffix}"] = name
        return names

    def _factors(self, name: str) -> list[float]:
        """Return the elements of a tensor whose elements divide the rotary frequencies."""
        values: list[float] = self._values(name).flatten().tolist()
        bad = [value for value in values if not (isfinite(value) and value > 0)]
        if bad:
            raise StartupError(
                f"The GGUF file {self.path} cannot be served: its tensor {name} contains {bad[0]:g}, "
                "which is not a positive number."
            )
        return values

    def _tensor(self, name: str) -> Tensor:
        layout = self._architecture.layout(name)
        values = self._values(name)
        return values if layout is None else layout(values, self.config_fields)

    def _quantized_rows(self, name: str) -> QuantizedRows | None:
        """Return a matrix in its stored format; None if it must be dequantized."""
        stored = self._tensors[name][1]
        layout = self._architecture.layout(name)
        kind = GGMLQuantizationType(stored.kind).name
        if kind not in KINDS or len(stored.shape) != 2 or (layout is not None and layout not in ROW_ORDERS):
            return None
        rows = torch.from_numpy(np.array(self._blocks(name)))
        return QuantizedRows(kind, rows if layout is None else layout(rows, self.config_fields))

    def _values(self, name: str) -> Tensor:
        path, stored = self._tensors[name]
        try:
            values = dequantize(self._blocks(name), GGMLQuantizationType(stored.kind))
            return torch.from_numpy(values if values.flags.writeable else values.copy())
        except (ValueError, NotImplementedError) as error:
            raise StartupError(f"The tensor {name} of {path} cannot be read: {one_line(error)}.") from error

    def _blocks(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, memory-mapped: [..., bytes of a row]."""
        path, stored = self._tensors[name]
        shape = quant_shape_to_byte_shape(stored.shape, GGMLQuantizationType(stored.kind))
        return np.asarray(np.memmap(path, np.uint8, "r", stored.offset, shape))


def _read_parts(directory: Path, file: str) -> list[GGUFHeader]:
    """Return the headers of all parts of a file. Raises StartupError if the parts do not belong together."""
    parts = split_parts(file)
    headers = [read_header(directory / part) for part in parts]
    count = headers[0].metadata.get("split.count", 1)
    if count not in (0, len(parts)):
        raise StartupError(
            f"The GGUF file {directory / file} is one of {count} parts, but its name does not end in "
            f"-00001-of-{count:05}.gguf, from which the other parts' names follow."
        )
    for number, header in enumerate(headers):
        if len(parts) > 1 and header.metadata.get("split.no") != number:
            raise StartupError(f"The GGUF file {header.path} is not part {number + 1} of {len(parts)}.")
    total = headers[0].metadata.get("split.tensors.count")
    found = sum(len(header.tensors) for header in headers)
    if total is not None and total != found:
        raise StartupError(
            f"The GGUF file {directory / file} has {found} tensors in all parts and should have {total}."
        )
    return headers


def _check_extents(header: GGUFHeader) -> None:
    """Raise StartupError if a tensor has an unknown type, extends beyond its file's end, or overlaps another tensor."""
    path, before, size = header.path, "", header.path.stat().st_size
    end = 0
    for stored in sorted(header.tensors, key=lambda one: one.offset):
        length = _num_bytes(path, stored)
        if stored.offset + length > size:
            raise StartupError(
                f"The GGUF file {path} is cut short: its tensor {stored.name} ends at byte {stored.offset + length}."
            )
        if length and stored.offset < end:
            raise StartupError(f"The GGUF file {path} is damaged: its tensors {before} and {stored.name} overlap.")
        if length:
            before, end = stored.name, stored.offset + length


def _num_bytes(path: Path, stored: StoredTensor) -> int:
    try:
        kind = GGMLQuantizationType(stored.kind)
        shape = quant_shape_to_byte_shape(stored.shape, kind) if kind in GGML_QUANT_SIZES else ()
    except ValueError as error:
        raise StartupError(f"The tensor {stored.name} of {path} cannot be read: {one_line(error)}.") from error
    return int(prod(shape))
