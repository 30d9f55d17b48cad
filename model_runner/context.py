"""How long a context a model can have here, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from ebbtide.errors import StartupError


def longest_context(config: PretrainedConfig) -> int:
    """Tokens. Models with LongRoPE get the length that they were first trained on. StartupError when none is said.

    LongRoPE has other frequencies for longer texts, chosen anew in each forward by the longest text in it: a request's
    output would depend on who runs beside it, and on keys that lie in the pool with the other frequencies.
    """
    text = config.get_text_config()
    ropes = _ropes(getattr(text, "rope_parameters", None) or {})
    originals = [int(rope["original_max_position_embeddings"]) for rope in ropes if rope["rope_type"] == "longrope"]
    longest = getattr(text, "max_position_embeddings", None)
    if longest is None:
        raise StartupError(f"The configuration of a {config.model_type} model does not say how long a text may be.")
    return min([int(longest), *originals])


def _ropes(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rotary embeddings of a configuration: one for all layers, or one for each kind of layer."""
    if "rope_type" in parameters:
        return [parameters]
    return [rope for rope in parameters.values() if isinstance(rope, Mapping) and "rope_type" in rope]
