"""Checks that the rotary parameters of a configuration give finite frequencies, for every RoPE type.

The frequencies are computed by transformers. This check reports only frequencies that are not finite. If transformers
fails to compute them for any other reason, the check passes, and the code that loads the model reports the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ebbtide.errors import StartupError

from .model_config import ModelConfig


def check_rotary(config: ModelConfig, where: str) -> None:
    """Raise StartupError if the rotary frequencies of a layer type, or its attention factor, are not finite.

    where: name of the file, for the error message.
    """
    for layer_type, parameters in _kinds(getattr(config, "rope_parameters", None)):
        low, high = parameters.get("low_freq_factor"), parameters.get("high_freq_factor")
        if parameters.get("rope_type") == "llama3" and low is not None and high is not None and low >= high:
            raise StartupError(
                f"The rope_parameters in {where} have a low_freq_factor of {low:g}, "
                f"which is not below the high_freq_factor of {high:g}."
            )
        if not _is_finite(config, layer_type, parameters.get("rope_type")):
            numbers = ", ".join(f"{name} {value}" for name, value in parameters.items() if not isinstance(value, list))
            raise StartupError(
                f"The rotary frequencies are not finite numbers with the parameters in {where}: {numbers}."
            )


def _kinds(rope: Any) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield (layer type, rotary parameters); the layer type is None if all layers have the same parameters."""
    if not isinstance(rope, Mapping):
        return
    nested = {name: value for name, value in rope.items() if isinstance(value, Mapping)}
    yield from nested.items() if nested else [(None, rope)]


def _is_finite(config: ModelConfig, layer_type: str | None, rope_type: object) -> bool:
    compute = ROPE_INIT_FUNCTIONS.get(str(rope_type))
    if compute is None:
        return True
    options: Any = {} if layer_type is None else {"layer_type": layer_type}
    try:
        frequencies, factor = compute(config, torch.device("cpu"), **options)
    except ArithmeticError:
        return False
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        return "math domain" not in str(error)
    return bool(torch.isfinite(frequencies).all()) and bool(torch.isfinite(torch.as_tensor(factor)).all())
