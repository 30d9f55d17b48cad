"""The safetensors files in a checkpoint's folder: names, shapes, element types and values of the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ebbtide.errors import StartupError
from ebbtide.tokenization.model_files import one_line, read_json_object

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}
# Suffixes of tensors that only quantized checkpoints have.
QUANTIZED_SUFFIXES = (
    ".qweight",
    ".qzeros",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_scale_2",
    ".SCB",
    ".absmax",
    "_scales",
    "_blocks",
)
SIDE_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor on disk.

    Attributes:
        dtype: name of the element type in safetensors, such as "BF16".
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]


class SafetensorsFiles:
    """The safetensors weights in a folder. The constructor raises StartupError if a file is missing or damaged."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths = _files(directory)
        self.stored: dict[str, StoredTensor] = {}
        for path in self._paths:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118 - safetensors files are not iterable
                    part = file.get_slice(name)
                    self.stored[name] = StoredTensor(path, part.get_dtype(), tuple(part.get_shape()))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name → shape of all tensors."""
        return {name: tensor.shape for name, tensor in self.stored.items()}

    def tensor(self, name: str) -> Tensor:
        """Return the values of one tensor."""
        path = self.stored[name].path
        with _opened(path) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and values of every tensor, one at a time."""
        for path in self._paths:
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, file.get_tensor(name)

    def quantization_method(self) -> str | None:
        """Return the quantization method that the tensors' names and element types imply; None if they imply none.

        Integer tensors that are not weights, such as a stored mask, do not count.
        """
        for name, tensor in self.stored.items():
            is_weight = name.endswith("weight") and bool(tensor.shape)
            if name.endswith(QUANTIZED_SUFFIXES) or tensor.dtype.startswith("F8"):
                return self._side_file_method() or _method_of(tensor.dtype)
            if is_weight and tensor.dtype not in PLAIN_DTYPES:
                return self._side_file_method() or _method_of(tensor.dtype)
        return None

    def _side_file_method(self) -> str | None:
        return next((method for name, method in SIDE_FILES.items() if (self._directory / name).is_file()), None)


def _method_of(dtype: str) -> str:
    return "fp8" if dtype.startswith("F8") else f"stored as {dtype}"


def _files(directory: Path) -> list[Path]:
    """Return the paths of a checkpoint's files: the single file if it exists, else the files in the index.

    As in transformers, the index is ignored if there is a single file.
    """
    single, index = directory / SINGLE_FILE, directory / INDEX
    if single.is_file() or not index.is_file():
        paths = [single]
    else:
        paths = sorted({directory / name for name in _listed(index)})
    for path in paths:
        if not path.is_file():
            raise StartupError(f"The weights file {path} does not exist; ebbtide reads safetensors and GGUF.")
    return paths


def _listed(index: Path) -> list[str]:
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise StartupError(f"The field weight_map in {index} must be an object with the file name of every tensor.")
    if not all(isinstance(name, str) and Path(name).name == name for name in names.values()):
        raise StartupError(f"The field weight_map in {index} must name files in the same folder.")
    return list(names.values())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file. Its errors in the block become StartupErrors that name the file."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        raise StartupError(f"The weights file {path} is damaged: {one_line(error)}.") from error
