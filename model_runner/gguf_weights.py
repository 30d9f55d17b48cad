"""Tensors and end-of-text tokens of a GGUF file, under Hugging Face names. Knows only the names of the Llama family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from ebbtide.errors import StartupError

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
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


class GGUFFile:
    """An open GGUF file; the tensors stay on disk until they are asked for."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = GGUFReader(path)
        except (ValueError, OSError) as error:
            raise StartupError(f"The file {path} is not a readable GGUF file: {error}") from error

    def eos_token_ids(self) -> set[int]:
        """The ids that end a text or a turn, from the tokenizer's metadata."""
        return {value for key in EOS_KEYS if (value := self._number(key)) is not None}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and float32 values of every tensor that belongs to the Llama family, one at a time."""
        permuted = self._permuted_heads()
        for stored in self._reader.tensors:
            name = hugging_face_name(stored.name)
            if name is None:
                continue
            values = torch.tensor(dequantize(stored.data, stored.tensor_type))
            kind = stored.name.split(".")[-2]
            yield name, _undo_interleaving(values, permuted[kind]) if kind in permuted else values

    def _permuted_heads(self) -> dict[str, int]:
        """Tensor kind → number of heads, for what the file format stores with interleaved halves of each head."""
        heads = self._number("llama.attention.head_count")
        if heads is None:
            return {}  # other architectures keep the halves of a head apart
        return {"attn_q": heads, "attn_k": self._number("llama.attention.head_count_kv") or heads}

    def _number(self, key: str) -> int | None:
        field = self._reader.get_field(key)
        return None if field is None else int(field.contents())


def hugging_face_name(name: str) -> str | None:
    """``blk.0.attn_q.weight`` → ``model.layers.0.self_attn.q_proj.weight``; None for other tensors."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in TOP_NAMES:
        return f"{TOP_NAMES[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return None


def _undo_interleaving(values: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from (pair, half) order back to (half, pair) order, which rotary embedding by halves needs."""
    pairs = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, pairs, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
