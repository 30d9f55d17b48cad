"""Reads the header of a GGUF file: metadata, and the tensors' names, shapes, types and offsets.

Arrays of the metadata, which may be large, are read on demand.

The module does not depend on model architectures or tokenizers, and does not import torch.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from ..errors import StartupError
from .model_files import one_line

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1, with 32-bit lengths, was replaced within weeks
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
# The exceptions that parsing damaged bytes raises.
DAMAGE = (OSError, ValueError, struct.error, KeyError, OverflowError)

Scalar = int | float | str


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array of the metadata. Its elements have not been read.

    Attributes:
        kind: GGUF type id of the elements (``gguf_metadata_value_type``).
        length: number of elements.
        offset: position of the first element, in bytes from the start of the file.
    """

    kind: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a GGUF file.

    Attributes:
        name: name in the GGUF file.
        shape: outermost dimension first.
        kind: GGML type id of the tensor (``ggml_type``), for example 12 for Q4_K.
        offset: position of its data, in bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """The header of a GGUF file.

    Attributes:
        metadata: key → value; the elements of an array are read by ``array``.
        tensors: the tensors in file order.
    """

    path: Path
    metadata: dict[str, Scalar | StoredArray]
    tensors: list[StoredTensor]

    def array(self, key: str) -> list[Scalar]:
        """Return the elements of an array; [] if the file does not have the key.

        Raises StartupError if the key's value is not an array, or if the array is damaged.
        """
        stored = self.metadata.get(key)
        if stored is None:
            return []
        if not isinstance(stored, StoredArray):
            raise StartupError(f"The key {key} of {self.path} is not an array.")
        try:
            with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                return _Cursor(data, stored.offset).elements(stored)
        except DAMAGE as error:
            raise StartupError(f"The array {key} of {self.path} is damaged: {one_line(error)}.") from error

    def strings(self, key: str) -> list[str]:
        """Return the elements of an array of strings. Raises StartupError if an element is not a string."""
        return [self._checked(key, value) for value in self.array(key)]

    def _checked(self, key: str, value: Scalar) -> str:
        if not isinstance(value, str):
            raise StartupError(f"The array {key} of {self.path} does not contain strings.")
        return value


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a GGUF file. Raises StartupError if the file is not in GGUF format."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return _read(path, _Cursor(data, 0))
    except DAMAGE as error:
        raise StartupError(f"The file {path} is not a readable GGUF file: {one_line(error)}.") from error


def _read(path: Path, cursor: _Cursor) -> GGUFHeader:
    if cursor.bytes(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin with the letters GGUF")
    version, num_tensors, num_fields = cursor.number("<I"), cursor.number("<Q"), cursor.number("<Q")
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}")
    metadata: dict[str, Scalar | StoredArray] = {}
    for _ in range(int(num_fields)):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"it has the key {key} twice")
        metadata[key] = cursor.value(int(cursor.number("<I")))
    tensors = [_read_tensor(cursor) for _ in range(int(num_tensors))]
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ValueError("it has two tensors of the same name")
    alignment = _alignment(metadata)
    for tensor in tensors:
        if tensor.offset % alignment:
            raise ValueError(f"its tensor {tensor.name} begins at {tensor.offset}, not at a multiple of {alignment}")
    start = cursor.aligned(alignment)
    placed = [StoredTensor(one.name, one.shape, one.kind, start + one.offset) for one in tensors]
    return GGUFHeader(path, metadata, placed)


def _read_tensor(cursor: _Cursor) -> StoredTensor:
    name, num_dimensions = cursor.string(), int(cursor.number("<I"))
    if num_dimensions > MAX_DIMENSIONS:
        raise ValueError(f"its tensor {name} has {num_dimensions} dimensions")
    dimensions = [int(cursor.number("<Q")) for _ in range(num_dimensions)]
    return StoredTensor(name, tuple(reversed(dimensions)), int(cursor.number("<I")), int(cursor.number("<Q")))


def _alignment(metadata: dict[str, Scalar | StoredArray]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError("its general.alignment is not a positive integer")
    return alignment


class _Cursor:
    """Reads a file sequentially. A read past the end of the file raises one of the exceptions in ``DAMAGE``."""

    def __init__(self, data: mmap, at: int) -> None:
        self._data = data
        self._at = at

    def bytes(self, length: int) -> bytes:
        self._skip(length)
        return self._data[self._at - length : self._at]

    def string(self) -> str:
        return self.bytes(int(self.number("<Q"))).decode()

    def number(self, layout: str) -> int | float:
        at = self._at
        self._skip(struct.calcsize(layout))
        value: int | float = struct.unpack_from(layout, self._data, at)[0]
        return value

    def value(self, kind: int) -> Scalar | StoredArray:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._skip_array()
        if kind not in SCALARS:
            raise ValueError(f"it has a value of the unknown type {kind}")
        return self.number(SCALARS[kind])

    def elements(self, array: StoredArray) -> list[Scalar]:
        """Return the elements of the array that begins at the current position."""
        if array.kind == STRING:
            return self._strings(array.length)
        layout = f"<{array.length}{SCALARS[array.kind][1:]}"
        return list(struct.unpack_from(layout, self._data, self._at))

    def aligned(self, alignment: int) -> int:
        """Return the next position that is a multiple of ``alignment``."""
        return -(-self._at // alignment) * alignment

    def _skip_array(self) -> StoredArray:
        array = StoredArray(int(self.number("<I")), int(self.number("<Q")), self._at)
        if array.kind == STRING:
            self._skip_strings(array.length)
        elif array.kind in SCALARS:
            self._skip(array.length * struct.calcsize(SCALARS[array.kind]))
        else:
            raise ValueError(f"it has an array of elements of type {array.kind}")
        return array

    def _strings(self, count: int) -> list[Scalar]:
        """Read ``count`` strings. The reads are inlined as in ``_skip_strings``."""
        data, at, length_at = self._data, self._at, struct.Struct("<Q").unpack_from
        strings: list[Scalar] = []
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0]
            strings.append(data[start:at].decode())
        self._at = at
        self._skip(0)
        return strings

    def _skip_strings(self, count: int) -> None:
        """Skip ``count`` strings. The reads are inlined: a vocabulary with its merges has half a million strings."""
        data, at, length_at = self._data, self._at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        self._at = at
        self._skip(0)

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise ValueError("it is cut short")
