"""Determines the maximum context length of a model from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ebbtide.errors import StartupError

from .checkpoint.model_config import ModelConfig


def longest_context(config: ModelConfig) -> int:
    """Return the maximum context length in tokens. Raises StartupError if the configuration states none."""
    longest = stated_context(config)
    if longest is None:
        raise StartupError(f"The configuration of a {config.model_type} model does not state a maximum context length.")
    return longest


def stated_context(config: ModelConfig) -> int | None:
    """Return the maximum context length in tokens; None if the configuration states none.

    A model with LongRoPE is limited to its original training length. For longer sequences, LongRoPE uses other
    frequencies for the whole batch: the output of a request would depend on the other requests, and cached keys would
    have been rotated with other frequencies.
    """
    text = config.get_text_config()
    ropes = _ropes(getattr(text, "rope_parameters", None) or {})
    originals = [int(rope["original_max_position_embeddings"]) for rope in ropes if rope["rope_type"] == "longrope"]
    longest = getattr(text, "max_position_embeddings", None)
    return None if longest is None else min([int(longest), *originals])


def _ropes(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rotary parameters of a configuration: one set for all layers, or one per layer type."""
    if "rope_type" in parameters:
        return [parameters]
    return [rope for rope in parameters.values() if isinstance(rope, Mapping) and "rope_type" in rope]
