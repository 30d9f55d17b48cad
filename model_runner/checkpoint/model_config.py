"""The interface of a model's configuration, which the configurations of transformers also implement."""

from __future__ import annotations

from typing import Any, Protocol

# The numeric parameters of the rotary embedding.
ROPE_NUMBERS = {
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "partial_rotary_factor",
}


class ModelConfig(Protocol):
    """The fields of config.json as attributes with transformers' names. An absent field has the family's default."""

    model_type: str

    def __getattr__(self, name: str) -> Any: ...

    def to_dict(self) -> dict[str, Any]:
        """Return all fields: name → value."""

    def get_text_config(self) -> ModelConfig:
        """Return the part that describes the language model."""
