"""How to read a GGUF architecture: the fields of its configuration, and the names and layouts of its tensors."""

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
    """The properties of a file's tensors that determine the configuration.

    Attributes:
        names: the names of all tensors.
        vocab_size: number of rows of the embedding.
        factors: name → elements of the tensors whose elements divide the rotary frequencies.
    """

    names: Collection[str]
    vocab_size: int
    factors: Mapping[str, list[float]]

    def has(self, kind: str) -> bool:
        """Return True if the first layer has the tensor ``kind``, for example ``attn_q.bias``."""
        return f"blk.0.{kind}" in self.names


Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """Describes how to read models of one GGUF architecture.

    Attributes:
        model_type: the model type in transformers.
        epsilon: configuration field and metadata key of the norms' epsilon.
        special: returns the fields that differ from the common ones or that only this architecture has.
        layouts: tensor kind, optionally with a suffix → function that undoes the converter's change.
        partial: True if models of the architecture may rotate only a part of each head.
        is_hybrid: True if some layers have no attention; ``attention.head_count_kv`` then has 0 for them.
        renamed: part of a parameter's name in transformers → the name in the gguf package's tensor table.
    """

    model_type: str
    epsilon: tuple[str, str] = ("rms_norm_eps", RMS)
    special: Callable[[Fields, Stored, Config], Config] = lambda fields, stored, config: {}
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    partial: bool = False
    is_hybrid: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    def layout(self, name: str) -> Layout | None:
        """Return the layout of a tensor; None if the converter does not change the tensor."""
        kind, _, suffix = name.rpartition(".")
        kind = kind.rpartition(".")[2]
        return self.layouts.get(f"{kind}.{suffix}") or self.layouts.get(kind)

    def renamed_name(self, name: str) -> str:
        """Return a parameter's name with the parts that the gguf package's tensor table names differently replaced."""
        for ours, theirs in self.renamed.items():
            name = name.replace(ours, theirs)
        return name

    def config(self, fields: Fields, stored: Stored) -> Config:
        """Return the fields of the transformers configuration. Raises StartupError for a key that is not supported."""
        config = _common(fields, stored, is_hybrid=self.is_hybrid) | {"model_type": self.model_type}
        config[self.epsilon[0]] = fields.positive(self.epsilon[1])
        if "partial_rotary_factor" in config["rope_parameters"] and not self.partial:
            raise fields.refusal("rope.dimension_count", f"should be {config['head_dim']}, the size of a head")
        config |= self.special(fields, stored, config)
        fields.refuse_unread()
        return config


def kv_heads_by_layer(fields: Fields) -> list[int]:
    """Return the number of KV heads of each layer, 0 for a layer without attention.

    Raises StartupError if the others differ, or if no layer has attention.
    """
    key = "attention.head_count_kv"
    counts = [int(count) for count in fields.array(key)]
    if len(set(counts) - {0}) != 1 or len(counts) != fields.size("block_count"):
        raise fields.refusal(key, "should have the same number for all layers with attention, and 0 for the others")
    return counts


def _common(fields: Fields, stored: Stored, *, is_hybrid: bool) -> Config:
    heads, hidden = fields.size("attention.head_count"), fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", hidden // heads)
    fields.expect("attention.value_length", (head_dim,))
    fields.expect("vocab_size", (stored.vocab_size,))
    fields.expect("attention.causal", (True,))
    fields.expect("expert_gating_func", (1,))  # softmax
    fields.expect("expert_group_count", (0, 1))
    fields.expect("expert_group_used_count", (0, 1))
    return {
        "vocab_size": stored.vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": fields.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": max(kv_heads_by_layer(fields))
        if is_hybrid
        else fields.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": fields.size("feed_forward_length"),
        "max_position_embeddings": fields.size("context_length"),
        "rope_parameters": rope_parameters(fields, head_dim=head_dim, factors=stored.factors),
        "tie_word_embeddings": "output.weight" not in stored.names,
    }
