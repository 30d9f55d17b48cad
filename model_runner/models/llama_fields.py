"""Lists the fields of config.json that native models read, and refuses other fields that would change their results.

The reference is transformers: a field that its class for the family ignores has no effect here either, even if the
field's name suggests one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ebbtide.errors import StartupError

from ..checkpoint.model_config import ROPE_NUMBERS

# The fields that are read for every family, by ``LlamaConfig``, ``Rotary`` and ``longest_context``.
READ = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "original_max_position_embeddings",
    "eos_token_id",
}
GEMMA = {"attention_bias", "hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"}
WINDOWS = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}
# Model type → further fields that transformers reads for it.
READ_BY = {
    "llama": {"attention_bias", "mlp_bias"},
    "mistral": {"sliding_window"},
    "ministral": {"sliding_window", "layer_types"},
    "qwen2": WINDOWS,
    "qwen3": WINDOWS | {"attention_bias"},
    "gemma2": WINDOWS | GEMMA | {"attn_logit_softcapping"},
    "lfm2": {
        *("norm_eps", "layer_types", "full_attn_idxs", "conv_L_cache", "conv_bias", "block_auto_adjust_ff_dim"),
        *("block_ffn_dim_multiplier", "block_multiple_of", "block_ff_dim", "tie_embedding"),
    },
    "falcon_h1": {
        *("attention_bias", "mlp_bias", "projectors_bias", "time_step_limit", "embedding_multiplier"),
        *("lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier"),
        *("mlp_multipliers", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier"),
        *("mamba_d_ssm", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
        *("mamba_expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "mamba_rms_norm"),
        "mamba_norm_before_gate",
    },
    "gemma3_text": WINDOWS | GEMMA | {"attn_logit_softcapping", "rope_local_base_freq", "_sliding_window_pattern"},
}
# Model types whose rotary parameters may be nested, one set per layer type.
NESTED_ROPE = {"gemma3_text"}
LAYER_TYPES = {"full_attention", "sliding_attention"}
# Fields without effect on the results, although their names suggest one: they affect only training or speed, or
# transformers ignores them for this family. If a checkpoint contains a bias that its family lacks, loading fails.
WITHOUT_EFFECT = WINDOWS | {
    "attention_bias",
    "mlp_bias",
    "initializer_range",
    "chunk_size_feed_forward",
    "sliding_window_pattern",
}
MATHEMATICS = re.compile(
    r"scale|scaling|multiplier|soft_?cap|clip|rope|rotary|alibi|causal|bidirectional|window|sink|chunk|per_layer"
    r"|parallel_(attn|attention|block|residual)|position_(embedding|bias)|temperature_tuning|layer_types|nope_|no_pos"
    r"|qk_(layer_?)?norm|cross_attention|encoder_decoder"
)
NEUTRAL_WORDS = {"", "rope", "default", "none", "full", "causal"}
ROPE_READ = (ROPE_NUMBERS - {"partial_rotary_factor"}) | {"rope_type", "type", "truncate"}


def refuse_unread_fields(fields: Mapping[str, Any], model_type: str, where: str) -> None:
    """Raise StartupError if a field that is not read could change the results.

    fields: the fields of config.json.
    where: name of the file, for the error message.
    """
    read = READ | READ_BY[model_type] | WITHOUT_EFFECT
    unread = {name: value for name, value in fields.items() if name not in read and MATHEMATICS.search(name)}
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name)
        if isinstance(rope, dict):
            sets = {kind: one for kind, one in rope.items() if model_type in NESTED_ROPE and kind in LAYER_TYPES}
            unread |= _unread_rope(name, {key: value for key, value in rope.items() if key not in sets})
            for kind, one in sets.items():
                unread |= _unread_rope(f"{name}.{kind}", one) if isinstance(one, dict) else {f"{name}.{kind}": one}
    for name, value in unread.items():
        if not _is_neutral(name, value):
            raise StartupError(
                f"The field {name} in {where} is {str(value)[:50]}, which ebbtide does not support for "
                f"{model_type} models."
            )
    if fields.get("is_causal") is False:
        raise StartupError(f"The field is_causal in {where} is false: attention in both directions is not supported.")


def _unread_rope(name: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in rope.items() if key not in ROPE_READ}


def _is_neutral(name: str, value: object) -> bool:
    """Return True if a value has no effect: null, false, zero, empty, a factor of one, or a neutral word."""
    if isinstance(value, str):
        return value.lower() in NEUTRAL_WORDS
    if isinstance(value, list | dict):
        return not value
    if isinstance(value, bool):
        return not value or name == "is_causal"
    return value in (None, 0, 1)
