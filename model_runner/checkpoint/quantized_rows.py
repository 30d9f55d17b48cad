"""Quantizes weights to int8, and splits rows of quantized weights, as GGUF stores them, into quants and scales.

The module does not depend on files or kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 32  # inputs that share a scale
SUPER = 256  # inputs of a superblock


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """A weight [N, K] in a GGUF format.

    Attributes:
        kind: name of the format, such as "Q4_1".
        rows: uint8 [N, bytes of a row], the blocks of each row one after the other.
    """

    kind: str
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Quants:
    """The parts of a quantized weight [N, K].

    Attributes:
        kind: name of the format.
        values: uint8 [N, K]; int8 as stored for Q8_0.
        fields: scales of each group of 32 inputs, [N, K / 32] each: scale and minimum, or their integer factors.
        above: float16 scales of each superblock of 256 inputs, [N, K / 256] each; empty for formats without them.
    """

    kind: str
    values: Tensor
    fields: tuple[Tensor, ...]
    above: tuple[Tensor, ...] = ()


def quantized(weight: Tensor) -> Quants:
    """Quantize [N, K] to int8 with a float16 scale per output and 32 inputs, as in the format Q8_0.

    K is padded to a multiple of 32 with zeros.
    """
    padded = functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))
    groups = padded.view(weight.shape[0], -1, GROUP)
    scales = groups.abs().amax(-1) / 127
    inverse = torch.where(scales > 0, 1 / scales, 0)
    values = groups.mul_(inverse[..., None]).round_().to(torch.int8)
    return Quants("Q8_0", values.view(torch.uint8).flatten(1), (scales.half(),))


def parts(stored: QuantizedRows) -> Quants:
    """Take the blocks of GGUF rows apart. The kind must be in ``KINDS``."""
    size, split = KINDS[stored.kind]
    return split(stored.kind, stored.rows.view(stored.rows.shape[0], -1, size))


def _halves(blocks: Tensor, first: int) -> Tensor:
    return blocks[..., first : first + 2].contiguous().view(torch.float16).squeeze(-1)


def _bits(values: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """[…, n] → […, len(shifts) * n]: the values shifted right by each number, and masked."""
    shifted = values[..., None, :] >> torch.tensor(shifts, dtype=torch.uint8)[:, None]
    return (shifted & mask).flatten(-2)


def _split_8(kind: str, blocks: Tensor) -> Quants:
    return Quants(kind, blocks[..., 2:].flatten(1), (_halves(blocks, 0),))


def _split_small(kind: str, blocks: Tensor) -> Quants:
    """Q4_0, Q4_1, Q5_0, Q5_1: scale, minimum and 5th bits if the format has them, and nibbles."""
    fields = tuple(_halves(blocks, at) for at in range(0, 4 if kind.endswith("_1") else 2, 2))
    quants = _bits(blocks[..., -16:], (0, 4), 15)
    if kind.startswith("Q5"):
        fifth = blocks[..., -20:-16, None] >> torch.arange(8, dtype=torch.uint8)
        quants |= (fifth & 1).flatten(-2) << 4
    return Quants(kind, quants.flatten(1), fields)


def _split_k(kind: str, blocks: Tensor) -> Quants:
    """Q4_K, Q5_K: scales of scales and minimums, 12 bytes with 6 bits for each, 5th bits only in Q5_K, and nibbles."""
    packed = blocks[..., 4:16]
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((low & 63, (high & 15) | (low >> 6 << 4)), -1)
    minimums = torch.cat((middle & 63, (high >> 4) | (middle >> 6 << 4)), -1)
    quants = _bits(blocks[..., -128:].reshape(*blocks.shape[:2], 4, 32), (0, 4), 15).flatten(-2)
    if kind == "Q5_K":
        quants |= _bits(blocks[..., 16:48], tuple(range(8)), 1) << 4
    fields = (scales.flatten(1), minimums.flatten(1))
    return Quants(kind, quants.flatten(1), fields, (_halves(blocks, 0), _halves(blocks, 2)))


def _split_6_k(kind: str, blocks: Tensor) -> Quants:
    """Nibbles and 2 upper bits in halves of 128 inputs, int8 scales of 16 inputs, and a scale of scales."""
    low = _bits(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64), (0, 4), 15).flatten(-2)
    high = _bits(blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32), (0, 2, 4, 6), 3).flatten(-2)
    scales = blocks[..., 192:208].reshape(blocks.shape[0], -1, 2)
    return Quants(kind, (low | (high << 4)).flatten(1), (scales[..., 0], scales[..., 1]), (_halves(blocks, 208),))


# Format → bytes of a block, and the function that takes blocks [N, blocks, bytes] apart.
KINDS: dict[str, tuple[int, Callable[[str, Tensor], Quants]]] = {
    "Q8_0": (34, _split_8),
    "Q4_0": (18, _split_small),
    "Q4_1": (20, _split_small),
    "Q5_0": (22, _split_small),
    "Q5_1": (24, _split_small),
    "Q4_K": (144, _split_k),
    "Q5_K": (176, _split_k),
    "Q6_K": (210, _split_6_k),
}
