"""The supported GGUF architectures: how their metadata becomes a transformers configuration, and their tensor layouts.

An architecture that is not in the table is refused, because its metadata has not been compared with an original
checkpoint. The module reads neither files nor the values of tensors.
"""

from __future__ import annotations

from .gguf_architecture import LAYER_NORM, RMS, Architecture, Config, Stored, kv_heads_by_layer
from .gguf_fields import Fields
from .gguf_layouts import (
    conv_channels,
    interleaved_keys,
    interleaved_queries,
    norm_plus_one,
    one_row,
    qkv_per_head,
    transposed,
)

# The converter reorders the rows of queries and keys for a rotary embedding with interleaved pairs.
INTERLEAVED = {"attn_q": interleaved_queries, "attn_k": interleaved_keys}
NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm")
NORMS_PLUS_ONE = {f"{kind}.weight": norm_plus_one for kind in NORMS}


def _experts(fields: Fields) -> Config:
    used = {"num_experts_per_tok": fields.integer("expert_used_count")}
    return used | {"num_experts": fields.integer("expert_count")}


def _llama(fields: Fields, stored: Stored, config: Config) -> Config:
    """Return the fields of Llama, Mistral and Mixtral, or of Qwen2 if only queries, keys and values have biases."""
    num_experts = fields.integer("expert_count", 0)
    used = fields.integer("expert_used_count", 0)
    if num_experts:
        return {"model_type": "mixtral", "num_local_experts": num_experts, "num_experts_per_tok": used}
    if stored.has("attn_q.bias") and not stored.has("attn_output.bias") and not stored.has("ffn_up.bias"):
        return {"model_type": "qwen2"}
    return {"attention_bias": stored.has("attn_q.bias"), "mlp_bias": stored.has("ffn_up.bias")}


def _biases(fields: Fields, stored: Stored, config: Config) -> Config:
    return {"attention_bias": stored.has("attn_q.bias"), "mlp_bias": stored.has("ffn_up.bias")}


def _qwen2_moe(fields: Fields, stored: Stored, config: Config) -> Config:
    return _experts(fields) | {
        "moe_intermediate_size": fields.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": fields.integer("expert_shared_feed_forward_length"),
        "qkv_bias": stored.has("attn_q.bias"),
        "norm_topk_prob": False,  # the format has no key for it; llama.cpp uses this value
    }


def _qwen3_moe(fields: Fields, stored: Stored, config: Config) -> Config:
    size = fields.integer("expert_feed_forward_length")
    return _experts(fields) | {"moe_intermediate_size": size, "norm_topk_prob": True}


def _olmoe(fields: Fields, stored: Stored, config: Config) -> Config:
    return _experts(fields) | {"norm_topk_prob": False}


def _granite(fields: Fields, stored: Stored, config: Config) -> Config:
    fields.expect("rope.scaling.finetuned", (True,))  # for Granite, False means no rotary embedding
    return {
        "attention_multiplier": fields.number("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.positive("logit_scale", 1.0),
        **_biases(fields, stored, config),
    }


def _granite_moe(fields: Fields, stored: Stored, config: Config) -> Config:
    experts = _experts(fields)
    return _granite(fields, stored, config) | {
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
    }


def _olmo(fields: Fields, stored: Stored, config: Config) -> Config:
    return {"clip_qkv": fields.number("attention.clamp_kqv") if fields.has("attention.clamp_kqv") else None}


def _olmo2(fields: Fields, stored: Stored, config: Config) -> Config:
    """Return the fields of OLMo 2 and OLMo 3.

    In OLMo 3, some layers have a sliding window; only the rotary embedding of the other layers is scaled.
    """
    if not fields.integer("attention.sliding_window", 0):
        return _qkv_biases(fields, stored, config)
    theta = config["rope_parameters"]["rope_theta"]
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": fields.positive("rope.freq_base_swa", theta)},
        "full_attention": config["rope_parameters"],
    }
    return _layer_kinds(fields, stored, config) | {"model_type": "olmo3", "rope_parameters": ropes}


def _layer_kinds(fields: Fields, stored: Stored, config: Config) -> Config:
    """Return the configuration fields for the sliding window and the layer types.

    ``attention.sliding_window_pattern`` marks the layers with a window. If the file has no window size, all layers have
    full attention.
    """
    window = fields.integer("attention.sliding_window", 0)
    marks = fields.array("attention.sliding_window_pattern")
    if window and len(marks) != config["num_hidden_layers"]:
        raise fields.refusal("attention.sliding_window_pattern", "should have an element for each layer")
    kinds = ["sliding_attention" if window and mark else "full_attention" for mark in marks]
    return {"sliding_window": window, "layer_types": kinds} if window else {"sliding_window": None}


def _lfm2(fields: Fields, stored: Stored, config: Config) -> Config:
    return {
        "layer_types": ["full_attention" if count else "conv" for count in kv_heads_by_layer(fields)],
        "conv_L_cache": fields.size("shortconv.l_cache"),
        "conv_bias": any(name.endswith("shortconv.conv.bias") for name in stored.names),
        "block_auto_adjust_ff_dim": False,  # the file has the adjusted size
    }


def _cohere(fields: Fields, stored: Stored, config: Config) -> Config:
    return {
        "logit_scale": fields.number("logit_scale", 1.0),
        "use_qk_norm": stored.has("attn_q_norm.weight"),
        "attention_bias": stored.has("attn_q.bias"),
    }


def _cohere2(fields: Fields, stored: Stored, config: Config) -> Config:
    """Return the fields with the sliding window. Every fourth layer has full attention and no rotary embedding."""
    window = fields.integer("attention.sliding_window")
    return {"logit_scale": fields.number("logit_scale"), "sliding_window": window}


def _gpt_neox(fields: Fields, stored: Stored, config: Config) -> Config:
    parallel = bool(fields.number("use_parallel_residual", True))
    return {"use_parallel_residual": parallel, "attention_bias": stored.has("attn_qkv.bias")}


def _gpt2(fields: Fields, stored: Stored, config: Config) -> Config:
    return {"n_inner": config["intermediate_size"], "n_positions": config["max_position_embeddings"]}


def _window(fields: Fields, stored: Stored, config: Config) -> Config:
    """Return the field with the sliding window of all layers; 0 in the file means no window."""
    return {"sliding_window": fields.integer("attention.sliding_window", 0) or None}


def _phi3(fields: Fields, stored: Stored, config: Config) -> Config:
    original = fields.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    return _window(fields, stored, config) | {"original_max_position_embeddings": original}


def _stablelm(fields: Fields, stored: Stored, config: Config) -> Config:
    return {
        "use_parallel_residual": bool(fields.number("use_parallel_residual", False)),
        "use_qkv_bias": stored.has("attn_q.bias"),
    }


def _gemma2(fields: Fields, stored: Stored, config: Config) -> Config:
    capping = {
        "attn_logit_softcapping": fields.positive("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.positive("final_logit_softcapping", 30.0),
    }
    window = {"sliding_window": fields.integer("attention.sliding_window", 4096)}
    return capping | window | _gemma_scale(config, layers_of_27b=46)


def _gemma3(fields: Fields, stored: Stored, config: Config) -> Config:
    """Return the fields with the sliding window. Every sixth layer has full attention and another rotary base."""
    local = fields.positive("rope.freq_base_swa", 10000.0)
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
        "full_attention": config["rope_parameters"],
    }
    window = fields.integer("attention.sliding_window", 0)
    if not window:
        raise fields.refusal("attention.sliding_window", "is missing")
    has_cap = fields.number("final_logit_softcapping", 0.0) != 0
    cap = fields.positive("final_logit_softcapping") if has_cap else None
    scale = _gemma_scale(config, layers_of_27b=62)
    return {"sliding_window": window, "rope_parameters": ropes, "final_logit_softcapping": cap, **scale}


def _gemma_scale(config: Config, *, layers_of_27b: int) -> Config:
    """Return the attention scale. The format has no key for it; as in llama.cpp, the number of layers determines it."""
    whole = config["num_hidden_layers"] == layers_of_27b
    return {
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if whole else config["head_dim"]
    }


def _qkv_biases(fields: Fields, stored: Stored, config: Config) -> Config:
    return {"attention_bias": stored.has("attn_q.bias")}


def _seed_oss(fields: Fields, stored: Stored, config: Config) -> Config:
    return {"attention_bias": stored.has("attn_q.bias"), "attention_out_bias": stored.has("attn_output.bias")}


def _starcoder2(fields: Fields, stored: Stored, config: Config) -> Config:
    return {"use_bias": stored.has("attn_q.bias")}


NORM = ("layer_norm_eps", LAYER_NORM)
GRANITE_EXPERTS = {"block_sparse_moe.router": "mlp.gate", "block_sparse_moe.experts": "mlp.experts"}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", special=_llama, layouts=INTERLEAVED),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen2moe": Architecture("qwen2_moe", special=_qwen2_moe, layouts={"ffn_gate_inp_shexp": one_row}),
    "qwen3moe": Architecture("qwen3_moe", special=_qwen3_moe),
    "smollm3": Architecture("smollm3", special=_biases, layouts=INTERLEAVED),
    "arcee": Architecture("arcee", special=_biases, layouts=INTERLEAVED),
    "granite": Architecture("granite", special=_granite, layouts=INTERLEAVED),
    "granitemoe": Architecture("granitemoe", special=_granite_moe, layouts=INTERLEAVED, renamed=GRANITE_EXPERTS),
    "olmo": Architecture("olmo", ("layer_norm_eps", LAYER_NORM), _olmo, INTERLEAVED),
    "olmo2": Architecture("olmo2", special=_olmo2),
    "olmoe": Architecture("olmoe", special=_olmoe),
    "command-r": Architecture("cohere", NORM, _cohere),
    "cohere2": Architecture("cohere2", NORM, _cohere2),
    "exaone4": Architecture("exaone4", special=_layer_kinds),
    "gptneox": Architecture("gpt_neox", NORM, _gpt_neox, {"attn_qkv": qkv_per_head}, partial=True),
    "gpt2": Architecture(
        "gpt2",
        ("layer_norm_epsilon", LAYER_NORM),
        _gpt2,
        dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transposed),
    ),
    "phi2": Architecture("phi", NORM, partial=True),
    "phi3": Architecture("phi3", special=_phi3, partial=True),
    "starcoder2": Architecture("starcoder2", ("norm_epsilon", LAYER_NORM), _starcoder2),
    "stablelm": Architecture("stablelm", NORM, _stablelm, partial=True),
    "nemotron": Architecture("nemotron", ("norm_eps", LAYER_NORM), _biases, NORMS_PLUS_ONE, partial=True),
    "gemma": Architecture("gemma", layouts=NORMS_PLUS_ONE),
    "gemma2": Architecture("gemma2", special=_gemma2, layouts=NORMS_PLUS_ONE),
    "gemma3": Architecture("gemma3_text", special=_gemma3, layouts=NORMS_PLUS_ONE),
    "glm4": Architecture("glm4", special=_qkv_biases, partial=True),
    "seed_oss": Architecture("seed_oss", special=_seed_oss),
    "ernie4_5": Architecture("ernie4_5"),
    "lfm2": Architecture("lfm2", ("norm_eps", RMS), _lfm2, {"conv.weight": conv_channels}, is_hybrid=True),
}
