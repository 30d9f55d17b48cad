"""Undoes what llama.cpp's converter changes in tensors, so that they are those of the original checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

# The stored values and the fields of the configuration → the values of the original checkpoint.
Layout = Callable[[Tensor, dict[str, Any]], Tensor]


def interleaved_queries(values: Tensor, config: dict[str, Any]) -> Tensor:
    """The rows of each query head were reordered from (half, pair) to (pair, half)."""
    return _undo_interleaving(values, config["num_attention_heads"])


def interleaved_keys(values: Tensor, config: dict[str, Any]) -> Tensor:
    """The rows of each key head were reordered from (half, pair) to (pair, half)."""
    return _undo_interleaving(values, config["num_key_value_heads"])


def norm_plus_one(values: Tensor, config: dict[str, Any]) -> Tensor:
    """Models whose norms multiply by one plus the weight are stored with the one added."""
    return values - 1


def transposed(values: Tensor, config: dict[str, Any]) -> Tensor:
    """GPT-2's Conv1D has its weight transposed. Biases are not changed."""
    return values.mT if values.dim() == 2 else values


def one_row(values: Tensor, config: dict[str, Any]) -> Tensor:
    """A matrix with a single row is stored as a vector."""
    return values.reshape(1, -1)


def qkv_per_head(values: Tensor, config: dict[str, Any]) -> Tensor:
    """GPT-NeoX has the rows of query, key and value of a head together; they were separated."""
    heads = config["num_attention_heads"]
    return values.reshape(3, heads, -1, *values.shape[1:]).transpose(0, 1).reshape(values.shape)


def _undo_interleaving(values: Tensor, num_heads: int) -> Tensor:
    pairs = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, pairs, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
