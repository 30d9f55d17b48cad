"""Copies stored tensors into parameters, one at a time. The module depends only on names and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ebbtide.errors import StartupError

DUMMY_STD = 0.02  # as large as the weights of a model before its training
# Suffixes of tensors that some checkpoints contain although they can be derived: rotary frequencies, and an output
# layer that is tied to the embedding.
DERIVED = ("rotary_emb.inv_freq", "lm_head.weight")


def fill(targets: dict[str, Tensor], tensors: Iterable[tuple[str, Tensor]], *, name: str) -> None:
    """Copy every stored tensor to the target of the same name, in the target's dtype and on its device.

    name: name of the model, for error messages.
    Raises StartupError if a tensor is missing or unknown, or has another shape.
    """
    missing = dict(targets)
    for tensor_name, tensor in tensors:
        target = _target(missing, tensor_name, tuple(tensor.shape), name)
        if target is not None:
            target.copy_(tensor)
    _refuse_missing(missing, name)


def fill_randomly(targets: dict[str, Tensor]) -> None:
    """Fill matrices with small random numbers and vectors with ones: weights for measurements, always the same."""
    for number, target in enumerate(targets.values()):
        if target.dim() > 1:
            generator = torch.Generator(target.device).manual_seed(number)
            target.normal_(std=DUMMY_STD, generator=generator)
        else:
            target.fill_(1)


def check_shapes(targets: dict[str, Tensor], shapes: Mapping[str, tuple[int, ...]], *, name: str) -> None:
    """Raise the StartupError that ``fill`` would raise for tensors with these names and shapes."""
    missing = dict(targets)
    for tensor_name, shape in shapes.items():
        _target(missing, tensor_name, shape, name)
    _refuse_missing(missing, name)


def _target(missing: dict[str, Tensor], tensor: str, shape: tuple[int, ...], name: str) -> Tensor | None:
    """Remove the tensor's target from ``missing`` and return it; None for a tensor that ebbtide derives."""
    target = missing.pop(tensor, None)
    if target is None:
        if tensor.endswith(DERIVED):
            return None
        raise StartupError(
            f"The weights of {name} contain the tensor {tensor}, which does not belong to its configuration."
        )
    if target.shape != shape:
        raise StartupError(
            f"The weights of {name} do not fit its configuration: {tensor} has shape {list(shape)} "
            f"and should have {list(target.shape)}."
        )
    return target


def _refuse_missing(missing: dict[str, Tensor], name: str) -> None:
    if missing:
        raise StartupError(f"The weights of {name} lack {len(missing)} tensors, {min(missing)} among them.")
