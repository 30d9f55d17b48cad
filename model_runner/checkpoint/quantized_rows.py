"""Quantizes weights to int8, and splits quantized GGUF weights into integers and scales.

The module does not depend on files or kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GROUP = 32  # number of inputs that share a scale
SUPER = 256  # number of inputs per super-block


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """A weight [N, K] in a quantized GGUF format.

    Attributes:
        kind: name of the GGML type, such as "Q4_1".
        rows: uint8 [N, bytes of a row]; a row consists of consecutive blocks.
    """

    kind: str
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Quants:
    """The parts of a quantized weight [N, K].

    Attributes:
        kind: name of the GGML type.
        values: the quantized integers, uint8 [N, K]; for Q8_0, the bytes of int8 values.
        fields: the scale of each group of 32 inputs and, in formats that have one, its minimum; one tensor [N, K / 32]
            each. In a format with super-blocks, they are integers that are multiplied by ``above``.
        above: float16 tensors [N, K / 256] with the scales of each super-block; empty for formats without super-blocks.
    """

    kind: str
    values: Tensor
    fields: tuple[Tensor, ...]
    above: tuple[Tensor, ...] = ()


def quantized(weight: Tensor) -> Quants:
    """Quantize a weight [N, K] to int8, with one float16 scale for each output row and group of 32 inputs, as in Q8_0.

    The inputs are padded with zeros to a multiple of 32.
    """
    padded = functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))
    groups = padded.view(weight.shape[0], -1, GROUP)
    scales = groups.abs().amax(-1) / 127
    inverse = torch.where(scales > 0, 1 / scales, 0)
    values = groups.mul_(inverse[..., None]).round_().to(torch.int8)
    return Quants("Q8_0", values.view(torch.uint8).flatten(1), (scales.half(),))


def parts(stored: QuantizedRows) -> Quants:
    """Split the blocks of a quantized weight into their parts. Its kind must be in ``KINDS``."""
    size, split = KINDS[stored.kind]
    return split(stored.kind, stored.rows.view(stored.rows.shape[0], -1, size))


def _halves(blocks: Tensor, first: int) -> Tensor:
    return blocks[..., first : first + 2].contiguous().view(torch.float16).squeeze(-1)


def _bits(values: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Return the values, shifted right by each of ``shifts`` and masked: […, n] → […, len(shifts) * n]."""
    shifted = values[..., None, :] >> torch.tensor(shifts, dtype=torch.uint8)[:, None]
    return (shifted & mask).flatten(-2)


def _split_8(kind: str, blocks: Tensor) -> Quants:
    return Quants(kind, blocks[..., 2:].flatten(1), (_halves(blocks, 0),))


def _split_small(kind: str, blocks: Tensor) -> Quants:
    """Unpack Q4_0, Q4_1, Q5_0 or Q5_1 blocks.

    A block has a float16 scale, a float16 minimum (Q4_1, Q5_1), the fifth bits (Q5_0, Q5_1), and the low 4 bits.
    """
    fields = tuple(_halves(blocks, at) for at in range(0, 4 if kind.endswith("_1") else 2, 2))
    quants = _bits(blocks[..., -16:], (0, 4), 15)
    if kind.startswith("Q5"):
        fifth = blocks[..., -20:-16, None] >> torch.arange(8, dtype=torch.uint8)
        quants |= (fifth & 1).flatten(-2) << 4
    return Quants(kind, quants.flatten(1), fields)


def _split_k(kind: str, blocks: Tensor) -> Quants:
    """Unpack Q4_K or Q5_K blocks.

    A block has two float16 super-scales (for the scales and for the minimums), 12 bytes of packed 6-bit scales and
    minimums, the fifth bits (Q5_K only), and the low 4 bits.
    """
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
    """Unpack Q6_K blocks.

    A block has the low 4 bits and the upper 2 bits in halves of 128 inputs, an int8 scale per 16 inputs, and a float16
    super-scale.
    """
    low = _bits(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64), (0, 4), 15).flatten(-2)
    high = _bits(blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32), (0, 2, 4, 6), 3).flatten(-2)
    scales = blocks[..., 192:208].reshape(blocks.shape[0], -1, 2)
    return Quants(kind, (low | (high << 4)).flatten(1), (scales[..., 0], scales[..., 1]), (_halves(blocks, 208),))


# GGML type → bytes per block, and the function that splits blocks [N, blocks, bytes] into their parts.
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
