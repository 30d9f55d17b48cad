"""Tensors and end-of-text tokens of a GGUF file, under Hugging Face names. Knows only the names of the Llama family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape
from torch import Tensor

from ebbtide.errors import StartupError

from .gguf_header import StoredTensor, read_header

TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FAMILY = ("llama", "qwen2", "qwen3")
REQUIRED = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
OPTIONAL = {"attention.head_count_kv": "num_key_value_heads", "vocab_size": "vocab_size"}
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


class GGUFFile:
    """A GGUF file; its tensors are read on demand."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = read_header(path)

    def eos_token_ids(self) -> set[int]:
        """The ids that end a text or a turn, from the tokenizer's metadata."""
        return {value for key in EOS_KEYS if (value := self._number(key)) is not None}

    def config_fields(self) -> dict[str, Any] | None:
        """The fields of the transformers configuration; None if the file is not a plain model of the Llama family."""
        architecture = str(self._header.metadata.get("general.architecture"))
        fields = {key.removeprefix(f"{architecture}."): value for key, value in self._header.metadata.items()}
        if architecture not in FAMILY or not REQUIRED.keys() <= fields.keys() or "rope.scaling.type" in fields:
            return None
        config: dict[str, Any] = {name: fields[key] for key, name in (REQUIRED | OPTIONAL).items() if key in fields}
        config.setdefault("vocab_size", fields["tokenizer.ggml.tokens"])
        config["head_dim"] = fields.get("attention.key_length", config["hidden_size"] // config["num_attention_heads"])
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
        config["tie_word_embeddings"] = all(stored.name != "output.weight" for stored in self._header.tensors)
        return config | {"model_type": architecture, "eos_token_id": fields.get(EOS_KEYS[0])}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and float32 values of every tensor that the Llama family has, one at a time."""
        permuted = self._permuted_heads()
        for stored in self._header.tensors:
            name = hugging_face_name(stored.name)
            if name is None:
                continue
            values = self._dequantized(stored)
            kind = stored.name.split(".")[-2]
            yield name, _undo_interleaving(values, permuted[kind]) if kind in permuted else values

    def _dequantized(self, stored: StoredTensor) -> Tensor:
        kind = GGMLQuantizationType(stored.kind)
        shape = quant_shape_to_byte_shape(stored.shape, kind)
        try:
            data = np.memmap(self._path, np.uint8, "r", stored.offset, shape)
            return torch.tensor(dequantize(data, kind))
        except (ValueError, NotImplementedError) as error:
            raise StartupError(f"The tensor {stored.name} of {self._path} cannot be read: {error}") from error

    def _permuted_heads(self) -> dict[str, int]:
        """Tensor kind → number of heads, for tensors that are stored with the halves of each head interleaved."""
        heads = self._number("llama.attention.head_count")
        if heads is None:
            return {}  # other architectures do not interleave
        return {"attn_q": heads, "attn_k": self._number("llama.attention.head_count_kv") or heads}

    def _number(self, key: str) -> int | None:
        value = self._header.metadata.get(key)
        return None if value is None else int(value)


def hugging_face_name(name: str) -> str | None:
    """``blk.0.attn_q.weight`` → ``model.layers.0.self_attn.q_proj.weight``; None for other tensors."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in TOP_NAMES:
        return f"{TOP_NAMES[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return None


def _undo_interleaving(values: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of each head from (pair, half) to (half, pair), as half-split rotary embedding needs them."""
    pairs = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, pairs, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
