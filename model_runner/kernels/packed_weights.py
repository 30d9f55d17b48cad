"""Packs the weights of linear layers into the blocks of 16 outputs that packed_linear.h and quantized_weights.h read.

The module does not depend on models or files.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..checkpoint.quantized_rows import GROUP, Quants

BLOCK = 16  # number of outputs per block
UNIT = 4  # number of blocks that a thread multiplies at a time
# In the order of ``Kind`` in quantized_weights.h.
KINDS = ("BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [N, K] in blocks.

    Attributes:
        kind: one of ``KINDS``.
        data: uint8 [blocks, bytes of a block]. N is padded with zeros to whole blocks.
        num_outputs: N.
        inner: K, padded to a multiple of 32.
    """

    kind: str
    data: Tensor
    num_outputs: int
    inner: int

    def table(self) -> Tensor:
        """Return the address and the kind of each block, int64 [blocks, 2]."""
        num_blocks, size = self.data.shape
        addresses = self.data.data_ptr() + size * torch.arange(num_blocks)
        return torch.stack((addresses, torch.full_like(addresses, KINDS.index(self.kind))), 1)


def pack_bfloat16(weight: Tensor) -> PackedWeight:
    """Pack a weight [N, K] in bfloat16. Each block is [K / 2, 16, 2]."""
    num_outputs, inner = weight.shape
    padding = (0, -inner % GROUP, 0, -num_outputs % BLOCK)
    padded = functional.pad(weight.bfloat16(), padding)
    packed = padded.view(-1, BLOCK, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()
    return PackedWeight("BF16", packed.flatten(1).view(torch.uint8), num_outputs, padded.shape[1])


def pack_quants(quants: Quants) -> PackedWeight:
    """Pack a quantized weight [N, K]. K must be a multiple of 32."""
    num_outputs, inner = quants.values.shape
    rows = _rows(_padded(quants.values))
    if quants.kind == "Q8_0":
        packed = [(rows ^ 128).flatten(2)]
    else:
        packed = [_nibbles(rows)]
        high = {"Q5": 1, "Q6": 2}.get(quants.kind[:2])
        if high is not None:
            packed.append(_high_bits(rows >> 4, high))
    records = torch.cat([*map(_field, quants.fields), *packed], -1)
    if quants.above:
        above = [_field(field) for field in quants.above]
        records = torch.cat([*above, records.view(*above[0].shape[:2], -1)], -1)
    return PackedWeight(quants.kind, records.flatten(1), num_outputs, inner)


def block_table(weights: list[PackedWeight], *, alternating: bool = False) -> Tensor:
    """Return the address and kind of every block of ``weights``, which are joined into one layer: int64 [blocks, 2].

    alternating: True to alternate the blocks of the weights, False to append each weight to the previous one.
    The last block is repeated up to a whole unit of ``UNIT`` blocks.
    """
    tables = [weight.table() for weight in weights]
    table = torch.stack(tables, 1).flatten(0, 1) if alternating else torch.cat(tables)
    return torch.cat((table, table[-1:].expand(-table.shape[0] % UNIT, 2)))


def _padded(rows: Tensor) -> Tensor:
    return functional.pad(rows, (0, 0, 0, -rows.shape[0] % BLOCK))


def _field(field: Tensor) -> Tensor:
    """Arrange scales or minimums by block: [N, groups] → uint8 [blocks, groups, bytes of 16 numbers]."""
    by_block = _padded(field).reshape(-1, BLOCK, field.shape[1]).transpose(1, 2).contiguous()
    return by_block.view(torch.uint8)


def _rows(values: Tensor) -> Tensor:
    """Arrange [N, K] as [blocks, groups, 8, 64], in rows of 4 inputs of 16 outputs."""
    quads = values.view(-1, BLOCK, values.shape[1] // GROUP, GROUP // 4, 4)
    return quads.permute(0, 2, 3, 1, 4).flatten(3)


def _nibbles(rows: Tensor) -> Tensor:
    """Pack the low 4 bits of 8 rows into 4: rows 0-3 in the low nibbles, rows 4-7 in the high nibbles."""
    low = rows & 15
    return (low[:, :, :4] | (low[:, :, 4:] << 4)).flatten(2)


def _high_bits(rows: Tensor, width: int) -> Tensor:
    """Pack each 8 / ``width`` consecutive rows of numbers of ``width`` bits into one row of bytes."""
    in_byte = 8 // width
    parts = rows.reshape(*rows.shape[:2], -1, in_byte, rows.shape[3])
    packed = parts[..., 0, :].clone()
    for index in range(1, in_byte):
        packed |= parts[..., index, :] << (width * index)
    return packed.flatten(2)
