"""Converts the rotary parameters of a GGUF file, as llama.cpp interprets them, to transformers' ``rope_parameters``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gguf_fields import Fields

DEFAULT_BASE = 10000.0
KINDS = ("none", "linear", "yarn", "longrope")
# Tensors whose elements divide the frequencies: one in Llama 3.1 and 3.2; two, for short and long contexts, in Phi-3.
FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
FACTOR_TENSORS = (FACTORS, SHORT_FACTORS, LONG_FACTORS)


def rope_parameters(fields: Fields, *, head_dim: int, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return the rotary parameters of a file. Raises StartupError for a combination that transformers cannot express.

    factors: name → elements of those ``FACTOR_TENSORS`` that the file has.
    """
    base = {"rope_theta": fields.positive("rope.freq_base", DEFAULT_BASE)}
    rotated = fields.size("rope.dimension_count", head_dim)
    if fields.has("rope.dimension_count") and (rotated > head_dim or rotated % 2):
        raise fields.refusal(
            "rope.dimension_count",
            f"is {rotated} and should be an even number of at most {head_dim}, the size of a head",
        )
    if rotated != head_dim:
        base["partial_rotary_factor"] = rotated / head_dim
    kind = fields.text("rope.scaling.type", "linear")  # as in llama.cpp, a factor without a type means linear scaling
    if kind not in KINDS:
        raise fields.refusal("rope.scaling.type", f"is {kind!r}, which is not supported")
    for name, values in factors.items():
        if len(values) != rotated // 2:
            raise fields.refusal(
                "rope.dimension_count", f"is {rotated}, but the tensor {name} has {len(values)} elements"
            )
    return base | _scaling(fields, kind, factors)


def _scaling(fields: Fields, kind: str, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    factor = _factor(fields)
    attention_factor = fields.positive("rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        if factors:
            raise fields.refusal(
                "rope.scaling.type", "is 'yarn', which is not supported together with frequency factors"
            )
        return _yarn(fields, factor, attention_factor)
    if kind == "none":
        factor = 1.0  # as in llama.cpp, the type overrides the factor
    if factors:
        return _divided(fields, factor, attention_factor, factors)
    if attention_factor != 1.0:
        raise fields.refusal(
            "rope.scaling.attn_factor", f"is {attention_factor:g}, which is not supported for {kind} scaling"
        )
    if kind == "longrope":
        raise fields.refusal("rope.scaling.type", "is 'longrope', but the file has no tensors with its factors")
    return {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _factor(fields: Fields) -> float:
    old = fields.number("rope.scale_linear", 1.0)
    factor = fields.number("rope.scaling.factor", old)
    return fields.positive("rope.scaling.factor", old) if factor else 1.0  # as in llama.cpp, 0 means no scaling


def _yarn(fields: Fields, factor: float, attention_factor: float) -> dict[str, Any]:
    fields.expect("rope.scaling.yarn_ext_factor", (1.0, -1.0))  # weight of the extrapolation; < 0 means 1
    parameters = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _original_context(fields),
        "beta_fast": fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": fields.positive("rope.scaling.yarn_beta_slow", 1.0),
    }
    if fields.has("rope.scaling.yarn_attn_factor"):
        fields.expect("rope.scaling.attn_factor", (1.0,))
        return parameters | {"attention_factor": fields.positive("rope.scaling.yarn_attn_factor")}
    if attention_factor != 1.0:
        raise fields.refusal(
            "rope.scaling.attn_factor", f"is {attention_factor:g}, which is not supported for yarn scaling"
        )
    return parameters


def _divided(
    fields: Fields, factor: float, attention_factor: float, factors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """Express frequencies that are divided by tensors as LongRoPE. A single tensor applies to all lengths."""
    short = [value * factor for value in factors.get(FACTORS) or factors.get(SHORT_FACTORS) or ()]
    long = [value * factor for value in factors.get(FACTORS) or factors.get(LONG_FACTORS) or ()]
    if not short or len(short) != len(long):
        raise fields.refusal("rope.scaling.type", "needs the tensors rope_factors_short and rope_factors_long")
    original = fields.size("context_length") if FACTORS in factors else _original_context(fields)
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "factor": 1.0,  # only the default of attention_factor depends on this value
        "attention_factor": attention_factor,
        "original_max_position_embeddings": original,
    }


def _original_context(fields: Fields) -> int:
    return fields.size("rope.scaling.original_context_length", fields.size("context_length"))
