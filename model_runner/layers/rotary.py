"""Half-split rotary position embedding (Su et al. 2021), with RoPE types that do not depend on the sequence length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ebbtide.errors import StartupError

from ..checkpoint.model_config import ModelConfig
from .rotary_scaling import SCALINGS, unscaled_periods


class Rotary:
    """Rotates each half-split pair (i, i + head_dim / 2) of a head by ``position * inv_freq[i]``."""

    def __init__(self, inv_freq: Tensor, scaling: float, *, dtype: torch.dtype) -> None:
        self._inv_freq = inv_freq.float()
        self._scaling = scaling
        self._dtype = dtype

    @classmethod
    def from_config(
        cls,
        config: ModelConfig,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        layer_type: str | None = None,
    ) -> Rotary:
        """Return the rotary embedding of a configuration.

        layer_type: the type of the layers, for a configuration with a set of rotary parameters for each type.

        Raises StartupError if the RoPE type is unknown or its scaling depends on the sequence length.
        """
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        kind = parameters.get("rope_type", "default")
        if kind not in SCALINGS or (kind == "longrope" and not _has_the_same_factors_for_all_lengths(parameters)):
            raise StartupError(f"Rotary embedding of kind {kind!r} is not supported for {config.model_type} models.")
        original = getattr(config, "original_max_position_embeddings", None)
        if original is not None:  # as in transformers, this field has priority
            parameters = {**parameters, "original_max_position_embeddings": original}
        periods = unscaled_periods(parameters["rope_theta"], head_dim)
        inv_freq, scaling = SCALINGS[kind](periods, parameters, config.max_position_embeddings)
        return cls(inv_freq.to(device), scaling, dtype=dtype)

    def in_dtype(self, dtype: torch.dtype) -> Rotary:
        """Return the same rotary embedding with tables of type ``dtype``."""
        return Rotary(self._inv_freq, self._scaling, dtype=dtype)

    def table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines for ``positions``, int64 [T]. Both tensors are [T, 1, head_dim].

        The first half of the sines is negated.
        """
        angles = positions.float()[:, None, None] * self._inv_freq
        cos = angles.cos() * self._scaling
        sin = angles.sin() * self._scaling
        return torch.cat((cos, cos), -1).to(self._dtype), torch.cat((-sin, sin), -1).to(self._dtype)


def _has_the_same_factors_for_all_lengths(parameters: Mapping[str, Any]) -> bool:
    """Return True if LongRoPE does not depend on the sequence length, as for Llama 3.1 in a GGUF file."""
    return bool(parameters["short_factor"] == parameters["long_factor"])


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate heads, [T, heads, head_dim], with the table of their positions. The result has the same shape."""
    cos, sin = table
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
