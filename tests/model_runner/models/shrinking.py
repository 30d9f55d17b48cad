"""Makes tiny versions of the causal models of transformers by changing their configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SMALL: dict[int, str] = {
    64: "hidden_size n_embd d_model",
    4: "num_hidden_layers n_layer num_layers num_attention_heads n_head num_heads num_local_experts n_routed_experts"
    " num_experts",
    2: "num_key_value_heads num_kv_heads num_experts_per_tok moe_topk",
    96: "intermediate_size ffn_dim n_inner",
    32: "moe_intermediate_size shared_expert_intermediate_size",
    300: "vocab_size vocab_size_per_layer_input",
    128: "max_position_embeddings n_positions n_ctx",
    16: "head_dim kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim",
    8: "qk_rope_head_dim hidden_size_per_layer_input rotary_dim sliding_window",
    24: "qk_head_dim",
    0: "pad_token_id",
    1: "bos_token_id n_group topk_group first_k_dense_replace",
}
SIZES = {name: value for value, names in SMALL.items() for name in names.split()} | {"eos_token_id": 2}
NUM_LAYERS = 4
LARGEST = 300_000_000  # parameters


def shrunken_config(model_type: str) -> transformers.PretrainedConfig:
    """The default configuration with small sizes. Raises the errors of transformers if they do not fit together."""
    config_class = CONFIG_MAPPING[model_type]
    return config_class(**_small(config_class().to_dict()))


def shrunken_model(model_type: str) -> transformers.PreTrainedModel:
    """A random float32 model whose attention matters to its logits. Raises ValueError if it is too large."""
    model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    with torch.device("meta"):
        if model_class(shrunken_config(model_type)).num_parameters() > LARGEST:
            raise ValueError(f"{model_type} does not get small")
    torch.manual_seed(0)
    model = model_class(shrunken_config(model_type)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            else:
                parameter.mul_(5)
    return model


def _small(config: dict[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {name: value for name, value in SIZES.items() if config.get(name) is not None}
    if not config.get("use_sliding_window", True):
        small.pop("sliding_window", None)
    if config.get("kv_lora_rank"):  # latent attention: head_dim is the rotated part, and every head has its own key
        small |= {name: value for name, value in (("head_dim", 8), ("num_key_value_heads", 4)) if name in small}
    if config.get("layer_types"):
        kinds = list(dict.fromkeys(config["layer_types"]))
        small["layer_types"] = (kinds * NUM_LAYERS)[:NUM_LAYERS]
    for name, value in config.items():
        if name.endswith("_config") and isinstance(value, dict):
            small[name] = value | _small(value)
    return small
