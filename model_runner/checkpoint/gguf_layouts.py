"""Undoes the changes that llama.cpp's converter makes to the tensors of the original checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

# A layout converts stored values to those of the original checkpoint, given the fields of the configuration.
Layout = Callable[[Tensor, dict[str, Any]], Tensor]


def interleaved_queries(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Undo the converter's reordering of each query head's rows from (half, pair) to (pair, half)."""
    return _undo_interleaving(values, config["num_attention_heads"])


def interleaved_keys(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Undo the converter's reordering of each key head's rows from (half, pair) to (pair, half)."""
    return _undo_interleaving(values, config["num_key_value_heads"])


def norm_plus_one(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Subtract 1, which the converter adds in models whose norms multiply by one plus the weight."""
    return values - 1


def transposed(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Transpose a weight of GPT-2's Conv1D layers, which GGUF stores transposed. The biases are stored unchanged."""
    return values.mT if values.dim() == 2 else values


def one_row(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Return a stored vector as a matrix with a single row."""
    return values.reshape(1, -1)


def conv_channels(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Return the weights of a convolution, [channels, taps], as [channels, 1, taps]. The converter removes the 1."""
    return values.unsqueeze(1)


def qkv_per_head(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Group the rows by head, each with query, key and value, as in GPT-NeoX. The converter separates the three."""
    heads = config["num_attention_heads"]
    return values.reshape(3, heads, -1, *values.shape[1:]).transpose(0, 1).reshape(values.shape)


# The layouts that only reorder rows. They also apply to rows of quantized blocks.
ROW_ORDERS: tuple[Layout, ...] = (interleaved_queries, interleaved_keys)


def _undo_interleaving(values: Tensor, num_heads: int) -> Tensor:
    pairs = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, pairs, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
