"""A small model of the Llama family with quantized weights of every format, and the same with dequantized weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from ebbtide.model_runner.checkpoint.quantized_rows import KINDS, QuantizedRows
from ebbtide.model_runner.models.llama import LlamaModel

from .small_llama import Sizes, small_llama

# More inputs than the kernels dequantize at a time, in superblocks of 256.
SIZES = Sizes(hidden=256, intermediate=2304, head_dim=64, vocab_size=203)
WIDTHS = {
    "Q8_0": 74.0,
    "Q4_0": 4.6,
    "Q4_1": 4.6,
    "Q5_0": 9.2,
    "Q5_1": 9.2,
    "Q4_K": 168.0,
    "Q5_K": 336.0,
    "Q6_K": 1370.0,
}
MIXED = (*KINDS, None)
Stored = Tensor | QuantizedRows


def quantized_rows(kind: str, shape: tuple[int, ...], seed: int) -> QuantizedRows:
    """Random blocks whose weights have a mean of about 0 and a deviation of about 1 / sqrt(inputs)."""
    size = KINDS[kind][0]
    per_block = 256 if kind.endswith("K") else 32
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (shape[0], shape[1] // per_block, size), np.uint8)
    scales = generator.uniform(0.5, 1.0, blocks.shape[:2]) / WIDTHS[kind] / shape[1] ** 0.5
    at = 208 if kind == "Q6_K" else 0
    _put_halves(blocks, at, scales)
    if kind.endswith("_1"):
        _put_halves(blocks, 2, scales * generator.uniform(-16, 0, scales.shape))
    elif kind in ("Q4_K", "Q5_K"):
        _put_halves(blocks, 2, scales * (15 if kind == "Q5_K" else 7.5))
        # Each minimum is a little more or less than its scale, so that the weights of a group have a mean of about 0.
        blocks[..., 8:12] = blocks[..., 4:8] ^ 3
        blocks[..., 12:16] = (blocks[..., 12:16] & 15) * 17 ^ 48
    return QuantizedRows(kind, torch.from_numpy(blocks.reshape(shape[0], -1)))


def _put_halves(blocks: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], at: int, values: object) -> None:
    blocks[..., at : at + 2] = np.asarray(values, np.float16)[..., None].view(np.uint8)


def dequantized(rows: QuantizedRows) -> Tensor:
    """The weights as the gguf package defines them."""
    return torch.from_numpy(dequantize(rows.rows.numpy(), GGMLQuantizationType[rows.kind]))


def kind_of(kind: str, number: int) -> str | None:
    """The format of a matrix; for "mixed", another one for each number, so that formats alternate in a fused layer."""
    return MIXED[number % len(MIXED)] if kind == "mixed" else kind


def weights_of(format_of: Callable[[int], str | None], sizes: Sizes = SIZES) -> dict[str, Stored]:
    """The tensors of a model. format_of: the format of the matrix with a number; None for bfloat16."""
    weights: dict[str, Stored] = {}
    for number, (name, tensor) in enumerate(small_llama(sizes).targets().items()):
        kind = format_of(number) if tensor.dim() == 2 else None
        weights[name] = tensor if kind is None else quantized_rows(kind, tuple(tensor.shape), number)
    return weights


def plain(weights: dict[str, Stored]) -> dict[str, Tensor]:
    """The tensors with dequantized matrices."""
    return {name: weight if isinstance(weight, Tensor) else dequantized(weight) for name, weight in weights.items()}


def torch_model(weights: dict[str, Stored], sizes: Sizes = SIZES) -> LlamaModel:
    """The model of the dequantized weights in float32."""
    model = small_llama(sizes, torch.float32)
    values = plain(weights)
    for name, target in model.targets().items():
        target.copy_(values[name])
    return model
