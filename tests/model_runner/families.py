"""The table of model families that the tests generate tiny random models of. docs/models.md is written from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCAB_SIZE = 512
CONTEXT = 512
WINDOW = 24


@dataclass(frozen=True)
class Family:
    """One model family, or a variant of one.

    Attributes:
        prefix: prefix of the names of its transformers classes.
        extra: the configuration besides the small sizes.
        gguf: its architecture in GGUF; None if a GGUF file of it is refused.
        refusal: a part of the sentence that refuses it; "" if ebbtide's output equals that of transformers.
    """

    prefix: str
    extra: dict[str, Any] = field(default_factory=dict)
    sizes: Callable[[], dict[str, Any]] | None = None
    embedding_scale: float = 1.0
    gguf: str | None = None
    refusal: str = ""

    def config(self) -> transformers.PretrainedConfig:
        """The tiny configuration."""
        sizes = (self.sizes or _gqa_sizes)()
        config_class = getattr(transformers, f"{self.prefix}Config")
        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        return config_class(vocab_size=VOCAB_SIZE, **sizes, **ids, **self.extra)

    def model(self, *, seed: int) -> transformers.PreTrainedModel:
        """A model with random weights."""
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # norms, biases and sinks start as constants, which would hide a mistake
                    parameter.add_(torch.randn_like(parameter), alpha=0.2)
            # Small embeddings: otherwise a model with tied ones repeats its last token forever.
            model.get_input_embeddings().weight.mul_(self.embedding_scale)
        return model


def _gqa_sizes() -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.25,
    }


def _neox_sizes() -> dict[str, Any]:
    sizes = _gqa_sizes()
    del sizes["num_key_value_heads"]
    return sizes


def _gpt2_sizes() -> dict[str, Any]:
    return {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT, "initializer_range": 0.25}


def _deep_sizes() -> dict[str, Any]:
    """Number of layers that suffices for families in which every fourth layer is of another kind."""
    return _gqa_sizes() | {"num_hidden_layers": 5}


def _phi_sizes() -> dict[str, Any]:
    return _neox_sizes() | {"intermediate_size": 256}


def _gemma3_sizes() -> dict[str, Any]:
    return _gqa_sizes() | {"num_hidden_layers": 7}


def _scaled(kind: str, **parameters: Any) -> dict[str, Any]:
    """Rotary embedding that is scaled beyond a context of 64 tokens."""
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 8.0}
    if kind != "linear":
        rope["original_max_position_embeddings"] = 64
    return {"rope_parameters": rope | parameters}


_LLAMA3 = _scaled("llama3", low_freq_factor=1.0, high_freq_factor=4.0)
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 128,
}
_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_MULTIPLIERS = {
    "embedding_multiplier": 2.0,
    "logits_scaling": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
}

# The first group runs natively, the second through transformers. The third has more of both, for docs/models.md.
NATIVE = {
    "llama": Family("Llama", {"rope_theta": 10000.0}, gguf="llama"),
    "mistral": Family("Mistral", {"sliding_window": WINDOW, "head_dim": 16}),
    "qwen2": Family("Qwen2", {"tie_word_embeddings": True}, gguf="qwen2"),
    "qwen3": Family("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}, gguf="qwen3"),
    "gemma2": Family(
        "Gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
        embedding_scale=0.25,
    ),
    "gemma3": Family(
        "Gemma3Text",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": WINDOW, "rope_parameters": _GEMMA3_ROPE},
        sizes=_gemma3_sizes,
        embedding_scale=0.25,
        gguf="gemma3",
    ),
    "falcon_h1": Family(
        "FalconH1",
        {
            "mamba_d_ssm": 96,
            "mamba_n_heads": 6,
            "mamba_n_groups": 2,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "key_multiplier": 0.7,
            "embedding_multiplier": 2.0,
            "lm_head_multiplier": 0.5,
            "mlp_multipliers": [0.9, 1.2],
            "attention_in_multiplier": 0.8,
            "attention_out_multiplier": 1.1,
            "ssm_in_multiplier": 1.3,
            "ssm_out_multiplier": 0.6,
            "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        },
    ),
    "lfm2": Family("Lfm2", {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32}, gguf="lfm2"),
}
BACKED = {
    "phi3": Family("Phi3", {"sliding_window": None}, gguf="phi3"),
    "gpt_neox": Family("GPTNeoX", sizes=_neox_sizes, gguf="gptneox"),
    "gpt2": Family("GPT2", sizes=_gpt2_sizes, gguf="gpt2"),
    "olmo2": Family("Olmo2", gguf="olmo2"),
    "gpt_oss": Family(  # sliding window on alternate layers, attention sinks, experts
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}
MORE = {
    "llama, biases": Family("Llama", {"attention_bias": True, "mlp_bias": True}, gguf="llama"),
    "llama, RoPE llama3": Family("Llama", _LLAMA3, gguf="llama"),
    "llama, RoPE linear": Family("Llama", _scaled("linear"), gguf="llama"),
    "llama, RoPE yarn": Family("Llama", _scaled("yarn", attention_factor=1.3, beta_fast=16.0), gguf="llama"),
    "mistral, no window": Family("Mistral", {"sliding_window": None, "head_dim": 32}, gguf="llama"),
    "mixtral": Family("Mixtral", {"num_local_experts": 4, "sliding_window": None}, gguf="llama"),
    "qwen2, RoPE yarn": Family("Qwen2", _scaled("yarn"), gguf="qwen2"),
    "qwen2_moe": Family(
        "Qwen2Moe",
        _EXPERTS | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
        gguf="qwen2moe",
    ),
    "qwen3_moe": Family(
        "Qwen3Moe",
        _EXPERTS | {"moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 16},
        gguf="qwen3moe",
    ),
    "smollm3": Family("SmolLM3", sizes=_deep_sizes, gguf="smollm3"),
    "arcee": Family("Arcee", {"head_dim": 16}, gguf="arcee"),
    "granite": Family("Granite", _MULTIPLIERS, gguf="granite"),
    "granitemoe": Family("GraniteMoe", _MULTIPLIERS | {"num_local_experts": 4}, gguf="granitemoe"),
    "olmo": Family("Olmo", {"clip_qkv": 2.0}, gguf="olmo"),
    "olmo3": Family("Olmo3", {"sliding_window": WINDOW}, sizes=_deep_sizes, gguf="olmo2"),
    "olmoe": Family("Olmoe", _EXPERTS, gguf="olmoe"),
    "cohere": Family("Cohere", {"logit_scale": 0.5, "use_qk_norm": True}, gguf="command-r"),
    "cohere2": Family(
        "Cohere2", {"head_dim": 16, "sliding_window": WINDOW, "logit_scale": 0.5}, sizes=_deep_sizes, gguf="cohere2"
    ),
    "exaone4": Family(
        "Exaone4", {"sliding_window": WINDOW, "sliding_window_pattern": 4}, sizes=_deep_sizes, gguf="exaone4"
    ),
    "falcon": Family("Falcon", {"num_kv_heads": 2, "alibi": False}, refusal="its attention cannot be replaced"),
    "phi": Family("Phi", sizes=_phi_sizes, gguf="phi2"),
    "phi3, RoPE longrope": Family(
        "Phi3",
        {"sliding_window": WINDOW, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 128},
        gguf="phi3",
    ),
    "starcoder2": Family("Starcoder2", {"sliding_window": None}, gguf="starcoder2"),
    "stablelm": Family("StableLm", {"use_qkv_bias": True}, gguf="stablelm"),
    "nemotron": Family("Nemotron", {"head_dim": 16}, gguf="nemotron"),
    "gemma": Family("Gemma", {"head_dim": 32}, embedding_scale=0.25, gguf="gemma"),
    "gemma2, scale of the head size": Family(
        "Gemma2", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": WINDOW}, gguf="gemma2"
    ),
    "glm4": Family("Glm4", {"head_dim": 16}, gguf="glm4"),
    "seed_oss": Family("SeedOss", {"head_dim": 16}, gguf="seed_oss"),
    "ernie4_5": Family("Ernie4_5", {"head_dim": 16}, gguf="ernie4_5"),
}
FAMILIES = NATIVE | BACKED | MORE
