"""Asynchronous copies of a step's inputs to the device and of its results to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 8  # alignment in bytes: the size of the widest element type

T = TypeVar("T")


def host_tensor(values: Sequence[float], dtype: type[np.generic]) -> Tensor:
    """Create a one-dimensional tensor on the host. For lists, it is about ten times as fast as ``torch.tensor``."""
    return torch.from_numpy(np.array(values, dtype=dtype))


def upload(inputs: T, device: torch.device) -> T:
    """Copy all tensors in ``inputs`` to ``device`` in one asynchronous copy; on the CPU, return ``inputs`` itself.

    inputs: a frozen dataclass. Frozen dataclasses in its fields, and lists of them, are included. The tensors of the
        result are views of one buffer on the device: clone a tensor that must outlive the step.

    Every call allocates its own host buffer, which is pinned on CUDA. The buffer may be released before the copy is
    done, because PyTorch's pinned-memory allocator waits for pending copies before it reuses a block.
    """
    if device.type == "cpu":
        return inputs
    packed = _pack(inputs, pinned=device.type == "cuda")
    return _unpack(inputs, packed.to(device, non_blocking=True))


class StaticInputs(Generic[T]):
    """Tensors with fixed addresses on the device, for a captured graph. Their values are replaced in one copy.

    Attributes:
        values: the tensors, in a dataclass of the same type as the constructor's ``inputs``.
    """

    def __init__(self, inputs: T, device: torch.device) -> None:
        """inputs: the initial values, on the host."""
        self._pinned = device.type == "cuda"
        self._buffer = _pack(inputs, pinned=False).to(device)
        self.values: T = _unpack(inputs, self._buffer)

    def load(self, inputs: T) -> None:
        """Queue the copy of new values, which must have the same types and shapes; see ``upload``."""
        self._buffer.copy_(_pack(inputs, pinned=self._pinned), non_blocking=True)


class SideUpload(Generic[T]):
    """An upload that runs beside the computation on CUDA, for inputs that are needed only at the end of a step."""

    def __init__(self, inputs: T, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        """stream: the stream in which to copy; None for the current stream."""
        self._stream = stream
        if stream is None:
            self._inputs = upload(inputs, device)
            return
        with torch.cuda.stream(stream):
            self._inputs = upload(inputs, device)
        for tensor in _tensors(self._inputs):  # the memory belongs to the side stream, and the current stream reads it
            tensor.record_stream(torch.cuda.current_stream(device))

    def wait(self) -> T:
        """Let the current stream wait for the copy, without blocking the host. Returns the inputs on the device."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        return self._inputs


class DeviceToHostCopy:
    """An asynchronous copy of a tensor to the host. A tensor on the CPU is used without a copy."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._event: torch.Event | None = None
        if tensor.device.type != "cpu":
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._event = torch.Event(tensor.device)
            self._event.record()

    def wait(self) -> Tensor:
        """Block until the copy is done, then return the host tensor."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor


def _pack(inputs: Any, *, pinned: bool) -> Tensor:
    """Return a host buffer, uint8, that contains the values of all tensors in ``inputs``."""
    tensors = _tensors(inputs)
    sizes = _sizes(tensors)
    host = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
    for view, tensor in zip(_views(host, tensors, sizes), tensors, strict=True):
        view.copy_(tensor)
    return host


def _unpack(inputs: T, buffer: Tensor) -> T:
    """Return a copy of ``inputs`` whose tensors are views of ``buffer``, into which inputs like these were packed."""
    tensors = _tensors(inputs)
    views = iter(_views(buffer, tensors, _sizes(tensors)))
    unpacked: T = _map_tensors(inputs, lambda _: next(views))
    return unpacked


def _tensors(inputs: Any) -> list[Tensor]:
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    _map_tensors(inputs, note)
    return tensors


def _sizes(tensors: list[Tensor]) -> list[int]:
    return [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]


def _views(buffer: Tensor, like: list[Tensor], sizes: list[int]) -> list[Tensor]:
    """Return consecutive parts of ``buffer``, uint8, as tensors with the types and shapes of ``like``.

    Part i has ``sizes[i]`` bytes, including padding.
    """
    starts = accumulate(sizes, initial=0)
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(starts, like, strict=False)
    ]


def _map_tensors(value: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of ``value`` in which every tensor t is replaced by ``convert(t)``, in the order of the fields."""
    if isinstance(value, Tensor):
        return convert(value)
    if isinstance(value, list) and value and is_dataclass(value[0]):
        return [_map_tensors(part, convert) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _map_tensors(getattr(value, field.name), convert) for field in fields(value)}
        return replace(value, **parts)
    return value
