"""One of GGUF's architectures: the common fields of its configuration, and how its tensors are named and stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .gguf_fields import Fields
from .gguf_layouts import Layout
from .gguf_rope import rope_parameters

RMS, LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True, slots=True)
class Stored:
    """What a configuration depends on besides the metadata.

    Attributes:
        names: of all tensors.
        vocab_size: rows of the embedding.
        factors: the elements of the tensors that divide rotary frequencies.
    """

    names: Collection[str]
    vocab_size: int
    factors: Mapping[str, list[float]]

    def has(self, kind: str) -> bool:
        """True if the first layer has the tensor, e.g. ``attn_q.bias``."""
        return f"blk.0.{kind}" in self.names


Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to read one of GGUF's architectures.

    Attributes:
        model_type: of transformers.
        epsilon: the field of the configuration, and its key.
        special: changes and adds what this architecture has besides the common fields.
        layouts: tensor kind, or kind and suffix → how the converter changed it.
        partial: True if only a part of each head may be rotated.
        renamed: parts of the parameters' names → what they are called in the table of the gguf package.
    """

    model_type: str
    epsilon: tuple[str, str] = ("rms_norm_eps", RMS)
    special: Callable[[Fields, Stored, Config], Config] = lambda fields, stored, config: {}
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    partial: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    def layout(self, name: str) -> Layout | None:
        """How a tensor was changed; None if it was not."""
        kind, _, suffix = name.rpartition(".")
        kind = kind.rpartition(".")[2]
        return self.layouts.get(f"{kind}.{suffix}") or self.layouts.get(kind)

    def renamed_name(self, name: str) -> str:
        """The name of a parameter in the table of the gguf package."""
        for ours, theirs in self.renamed.items():
            name = name.replace(ours, theirs)
        return name

    def config(self, fields: Fields, stored: Stored) -> Config:
        """The fields of the transformers configuration. Raises StartupError for a key that is not understood."""
        config = _common(fields, stored) | {"model_type": self.model_type}
        config[self.epsilon[0]] = fields.number(self.epsilon[1])
        if "partial_rotary_factor" in config["rope_parameters"] and not self.partial:
            raise fields.refusal("rope.dimension_count", f"should be {config['head_dim']}, the size of a head")
        config |= self.special(fields, stored, config)
        fields.refuse_unread()
        return config


def _common(fields: Fields, stored: Stored) -> Config:
    heads, hidden = fields.integer("attention.head_count"), fields.integer("embedding_length")
    if heads < 1:
        raise fields.refusal("attention.head_count", "is not positive")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    fields.expect("attention.value_length", (head_dim,))
    fields.expect("vocab_size", (stored.vocab_size,))
    fields.expect("attention.causal", (True,))
    fields.expect("expert_gating_func", (1,))  # softmax
    fields.expect("expert_group_count", (0, 1))
    fields.expect("expert_group_used_count", (0, 1))
    return {
        "vocab_size": stored.vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": fields.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": fields.integer("feed_forward_length"),
        "max_position_embeddings": fields.integer("context_length"),
        "rope_parameters": rope_parameters(fields, head_dim=head_dim, factors=stored.factors),
        "tie_word_embeddings": "output.weight" not in stored.names,
    }
