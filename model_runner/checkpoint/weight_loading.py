"""Copies stored tensors into parameters, one at a time. Uses only names and shapes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ebbtide.errors import StartupError

# Some checkpoints store these, ebbtide derives them: rotary frequencies, and an output layer tied to the embedding.
DERIVED = ("rotary_emb.inv_freq", "lm_head.weight")


def fill(targets: dict[str, Tensor], tensors: Iterable[tuple[str, Tensor]], *, name: str) -> None:
    """Copy every stored tensor to its target, in the target's dtype and on its device.

    name: of the model, for messages. Raises StartupError if a tensor is missing, unknown or of another shape.
    """
    missing = dict(targets)
    for tensor_name, tensor in tensors:
        target = missing.pop(tensor_name, None)
        if target is None:
            if tensor_name.endswith(DERIVED):
                continue
            raise StartupError(
                f"The weights of {name} contain the tensor {tensor_name}, which does not belong to its configuration."
            )
        if target.shape != tensor.shape:
            raise StartupError(
                f"The weights of {name} do not fit its configuration: {tensor_name} has shape {list(tensor.shape)} "
                f"and should have {list(target.shape)}."
            )
        target.copy_(tensor)
    if missing:
        raise StartupError(f"The weights of {name} lack {len(missing)} tensors, {min(missing)} among them.")
