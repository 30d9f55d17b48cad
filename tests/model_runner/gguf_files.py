"""Writes GGUF files of tiny models, with the changes that llama.cpp's converter makes to names and tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, quantize
from gguf.tensor_mapping import get_tensor_name_map
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from ebbtide.model_runner.checkpoint.quantized_rows import QuantizedRows
from ebbtide.model_runner.models.lfm2 import Lfm2Config

from .checkpoints import BOS, CHAT_TEMPLATE, EOS, PAD, SPECIAL, byte_level_tokenizer
from .families import VOCAB_SIZE

NORMAL, CONTROL = 1, 3
INTERLEAVED = {"llama", "smollm3", "arcee", "granite", "granitemoe", "olmo"}
PLUS_ONE = {"gemma", "gemma2", "gemma3", "nemotron"}
LAYER_NORM = {"command-r", "cohere2", "gptneox", "gpt2", "phi2", "starcoder2", "stablelm", "nemotron", "olmo"}
EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
WINDOW = {"attention.sliding_window": "sliding_window"}
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
# Architecture → key → attribute of the configuration, besides the keys that all of them have.
KEYS: dict[str, dict[str, str]] = {
    "llama": {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    "qwen2moe": EXPERTS
    | {
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    },
    "qwen3moe": EXPERTS | {"expert_feed_forward_length": "moe_intermediate_size"},
    "olmoe": EXPERTS,
    "granite": GRANITE,
    "granitemoe": GRANITE | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    "lfm2": {"shortconv.l_cache": "conv_L_cache"},
    "olmo": {"attention.clamp_kqv": "clip_qkv"},
    "command-r": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale"} | WINDOW,
    "gptneox": {"use_parallel_residual": "use_parallel_residual"},
    "stablelm": {"use_parallel_residual": "use_parallel_residual"},
    "phi3": {"attention.sliding_window": "sliding_window"},
    "gemma2": CAPS | WINDOW,
    "gemma3": WINDOW,
    "exaone4": WINDOW,
    "olmo2": WINDOW,
}
RENAMED = {"block_sparse_moe.router": "mlp.gate", "block_sparse_moe.experts": "mlp.experts"}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    *,
    changes: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, Tensor | QuantizedRows] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    parts_of: int = 0,
) -> Path:
    """Write a model's weights, metadata and tokenizer.

    changes: keys to replace or add; None removes a key. extra_tensors: tensors to replace or add. kind: of all other
    matrices. parts_of: split the file after so many tensors. Returns the path, of the first part of a split file.
    """
    writer = GGUFWriter(path, architecture, split_max_tensors=parts_of)
    fields = {f"{architecture}.{key}": value for key, value in _fields(model.config, architecture).items()}
    for key, value in (fields | _tokenizer_fields() | dict(changes or {})).items():
        if value is not None:
            add_field(writer, key, value)
    for name, tensor in ({**dict(_tensors(model, architecture))} | dict(extra_tensors or {})).items():
        if isinstance(tensor, QuantizedRows):
            writer.add_tensor(name, tensor.rows.numpy(), raw_dtype=GGMLQuantizationType[tensor.kind])
            continue
        values = tensor.detach().float().contiguous().numpy()
        if values.ndim > 1 and kind != GGMLQuantizationType.F32:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.is_file() else next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))))


def add_field(writer: GGUFWriter, key: str, value: object) -> None:
    """Add a key with the type that the converter uses for such a value."""
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def rope_fields(architecture: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the converter writes for linear and YaRN scaling."""
    names = {
        "rope_type": "type",
        "factor": "factor",
        "original_max_position_embeddings": "original_context_length",
        "attention_factor": "yarn_attn_factor",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    return {f"{architecture}.rope.scaling.{names[key]}": rope[key] for key in names if key in rope}


def _fields(config: PretrainedConfig, architecture: str) -> dict[str, Any]:
    stored = config.to_dict()
    heads = config.num_attention_heads
    head_dim = stored.get("head_dim") or config.hidden_size // heads
    ropes = stored.get("rope_parameters") or {"rope_theta": 10000.0}
    rope = ropes.get("full_attention", ropes)
    epsilon = (
        next(v for k, v in stored.items() if k.endswith(("norm_eps", "norm_epsilon")) or k == "norm_eps")
        if (architecture != "olmo")
        else 1e-5
    )
    fields = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": stored.get("intermediate_size") or 4 * config.hidden_size,
        "attention.head_count": heads,
        "attention.head_count_kv": stored.get("num_key_value_heads") or heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        f"attention.layer_norm_{'' if architecture in LAYER_NORM else 'rms_'}epsilon": epsilon,
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
        "vocab_size": config.vocab_size,
    }
    for key, name in KEYS.get(architecture, {}).items():
        if getattr(config, name, None) is not None:
            fields[key] = getattr(config, name)
    kinds = stored.get("layer_types")
    if architecture == "lfm2":
        counts = [0 if kind == "conv" else config.num_key_value_heads for kind in kinds]
        size = Lfm2Config.read(config).sizes.intermediate
        fields |= {"attention.head_count_kv": counts, "feed_forward_length": size}
    if kinds and architecture in ("exaone4", "olmo2"):
        fields["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    if rope.get("rope_type") == "longrope":
        original = rope["original_max_position_embeddings"]
        fields["rope.scaling.original_context_length"] = original
        scale = config.max_position_embeddings / original
        fields["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    if "sliding_attention" in ropes:
        fields["rope.freq_base_swa"] = ropes["sliding_attention"]["rope_theta"]
    scaling = rope_fields("x", rope) if rope.get("rope_type") in ("linear", "yarn") else {}
    return fields | {key.removeprefix("x."): value for key, value in scaling.items()}


def _tokenizer_fields() -> dict[str, Any]:
    tokenizer = byte_level_tokenizer()
    tokens = [tokenizer.id_to_token(i) or f"[PAD{i}]" for i in range(VOCAB_SIZE)]
    merges = list(_merges(tokenizer.to_str()))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if token in SPECIAL else NORMAL for token in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": SPECIAL.index(BOS),
        "tokenizer.ggml.eos_token_id": SPECIAL.index(EOS),
        "tokenizer.ggml.padding_token_id": SPECIAL.index(PAD),
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _merges(state: str) -> Iterator[str]:
    for merge in json.loads(state)["model"]["merges"]:
        yield merge if isinstance(merge, str) else " ".join(merge)


def _tensors(model: PreTrainedModel, architecture: str) -> Iterator[tuple[str, Tensor]]:
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, values in model.state_dict().items():
        if name in model.all_tied_weights_keys:
            continue
        for part, tensor in _split_experts(name, values):
            base, _, suffix = part.rpartition(".")
            base, suffix = (base, suffix) if suffix in ("weight", "bias") else (part, "weight")
            for ours, theirs in RENAMED.items():
                base = base.replace(ours, theirs)
            stored = table.get_name(base)
            assert stored is not None, part
            changed = _changed(tensor, part, architecture, model.config)
            yield f"{stored}.{suffix}", changed
    yield from _rope_tensors(model.config)


def _split_experts(name: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    if not name.endswith("experts.gate_up_proj"):
        yield name, values
        return
    size = values.shape[1] // 2
    yield name.replace("gate_up_proj", "gate_proj"), values[:, :size]
    yield name.replace("gate_up_proj", "up_proj"), values[:, size:]


def _changed(values: Tensor, name: str, architecture: str, config: PretrainedConfig) -> Tensor:
    if architecture in INTERLEAVED and ".q_proj." in name:
        return _interleaved(values, config.num_attention_heads)
    if architecture in INTERLEAVED and ".k_proj." in name:
        return _interleaved(values, config.num_key_value_heads)
    if architecture in PLUS_ONE and name.endswith("norm.weight"):
        return values + 1
    if architecture == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return values.T
    if architecture == "gptneox" and "query_key_value" in name:
        heads = values.chunk(config.num_attention_heads)
        return torch.cat([torch.cat([head.chunk(3)[part] for head in heads]) for part in range(3)])
    is_conv = name.endswith("conv.conv.weight")
    return values.squeeze(1) if is_conv else values[0] if name.endswith("shared_expert_gate.weight") else values


def _interleaved(values: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of each head from (first half, second half) to pairs of one row of each half."""
    halves = [head.chunk(2) for head in values.chunk(num_heads)]
    return torch.cat([torch.stack(pair, 1).flatten(0, 1) for pair in halves])


def _rope_tensors(config: PretrainedConfig) -> Iterator[tuple[str, Tensor]]:
    rope = config.to_dict().get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"])
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(config)


def llama3_factors(config: PretrainedConfig) -> Tensor:
    """Return the divisors of Llama 3.1's frequencies, computed from transformers' frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    head_dim = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim)
    factors: Tensor = plain / scaled
    return factors
