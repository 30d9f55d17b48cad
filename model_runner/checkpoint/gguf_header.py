"""Reads the header of a GGUF file: metadata and tensor offsets. Skips arrays, to be fast with large vocabularies."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from ebbtide.errors import StartupError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 had 32-bit lengths and was replaced within weeks
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32

Scalar = int | float | str


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: GGUF's.
        shape: outermost dimension first.
        kind: GGML's number of the quantization.
        offset: bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """The header of a file.

    Attributes:
        metadata: field name → its value; for an array, its length.
        tensors: in file order.
    """

    metadata: dict[str, Scalar]
    tensors: list[StoredTensor]


def read_header(path: Path) -> GGUFHeader:
    """Read the header of a file. Raises StartupError if it is not a GGUF file."""
    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            return _Cursor(data).header()
    except (OSError, ValueError, struct.error, KeyError, UnicodeDecodeError) as error:
        raise StartupError(f"The file {path} is not a readable GGUF file: {error}") from error


class _Cursor:
    """Reads the bytes from front to back, once."""

    def __init__(self, data: mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GGUFHeader:
        if self._data[:4] != MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        self._at = 4
        version, num_tensors, num_fields = self._take("<I"), self._take("<Q"), self._take("<Q")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}")
        metadata = {}
        for _ in range(int(num_fields)):
            key = self._string()
            metadata[key] = self._value(int(self._take("<I")))
        tensors = [self._tensor() for _ in range(int(num_tensors))]
        alignment = int(metadata.get("general.alignment", ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        placed = [StoredTensor(one.name, one.shape, one.kind, start + one.offset) for one in tensors]
        return GGUFHeader(metadata, placed)

    def _tensor(self) -> StoredTensor:
        name = self._string()
        dimensions = [int(self._take("<Q")) for _ in range(int(self._take("<I")))]
        return StoredTensor(name, tuple(reversed(dimensions)), int(self._take("<I")), int(self._take("<Q")))

    def _value(self, kind: int) -> Scalar:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._skip_array()
        return self._take(SCALARS[kind])

    def _skip_array(self) -> int:
        kind, length = int(self._take("<I")), int(self._take("<Q"))
        if kind in SCALARS:
            self._at += length * struct.calcsize(SCALARS[kind])
            return length
        for _ in range(length):
            if kind == STRING:
                self._at += 8 + int(struct.unpack_from("<Q", self._data, self._at)[0])
            else:
                self._value(kind)
        return length

    def _string(self) -> str:
        length = int(self._take("<Q"))
        self._at += length
        if self._at > len(self._data):
            raise ValueError("it is cut short")
        return self._data[self._at - length : self._at].decode()

    def _take(self, layout: str) -> int | float:
        value: int | float = struct.unpack_from(layout, self._data, self._at)[0]
        self._at += struct.calcsize(layout)
        return value
