"""The frequencies of rotary embeddings that do not depend on the sequence length, by RoPE type.

Each function returns the frequencies, and the factor of sines and cosines. Its arguments are the periods (the inverses
of the unscaled frequencies), the rotary parameters, and the model's context length. The operations have the same order
as in transformers, so that the results are bitwise identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Parameters = Mapping[str, Any]
Scaling = Callable[[Tensor, Parameters, int], tuple[Tensor, float]]


def unscaled_periods(theta: float, head_dim: int) -> Tensor:
    """Return the inverses of the unscaled frequencies, float32 [head_dim / 2] (Su et al. 2021)."""
    return torch.as_tensor(theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))


def _default(periods: Tensor, parameters: Parameters, context_length: int) -> tuple[Tensor, float]:
    return 1.0 / periods, 1.0


def _linear(periods: Tensor, parameters: Parameters, context_length: int) -> tuple[Tensor, float]:
    return 1.0 / periods / parameters["factor"], 1.0


def _llama3(periods: Tensor, parameters: Parameters, context_length: int) -> tuple[Tensor, float]:
    """Llama 3.1: divide frequencies with long wavelengths by the factor, and keep those with short wavelengths.

    Frequencies with wavelengths between the two bounds are interpolated.
    """
    low, high, length, factor = (
        parameters[name]
        for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "factor")
    )
    frequencies = 1.0 / periods
    wavelengths = 2 * math.pi / frequencies
    share = (length / wavelengths - low) / (high - low)  # weight of the unscaled frequency
    partly = (1 - share) * frequencies / factor + share * frequencies
    short = torch.where(wavelengths < length / high, frequencies, partly)
    return torch.where(wavelengths > length / low, frequencies / factor, short), 1.0


def _yarn(periods: Tensor, parameters: Parameters, context_length: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): mix scaled and unscaled frequencies; the longer the period, the more of the scaled."""
    dim, length = 2 * len(periods), parameters["original_max_position_embeddings"]
    factor = parameters["factor"] or context_length / length
    low, high = (
        dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(parameters["rope_theta"]))
        for turns in (parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1)
    )
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    steps = (torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    kept = 1 - steps.clamp(0, 1)
    frequencies = 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept
    return frequencies, _yarn_attention(parameters, factor)


def _yarn_attention(parameters: Parameters, factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, weight_of_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return magnitude(weight) / magnitude(weight_of_all) if weight and weight_of_all else magnitude(1.0)


def _longrope(periods: Tensor, parameters: Parameters, context_length: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024) with the factors for short contexts."""
    length = parameters["original_max_position_embeddings"]
    factor = parameters.get("factor") or context_length / length
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
    return 1.0 / (torch.tensor(parameters["short_factor"], dtype=torch.float32) * periods), float(attention)


SCALINGS: dict[str, Scaling] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
