"""The state space recurrence of Mamba-2 for items of different lengths: one step per decode row, blocks for prefill.

The blocked form is the state space dual (Dao and Gu, "Transformers are SSMs", 2024): within a block, the recurrence is
computed as a masked product of all pairs of tokens, and blocks are connected by their states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..batch import ForwardBatch

BLOCK = 64  # tokens


@dataclass(frozen=True, slots=True)
class SsdInputs:
    """The inputs of T tokens, in float32, for H heads of size P in G groups, with states of size S.

    Attributes:
        x: [T, H, P].
        dt: [T, H], the positive step sizes.
        b, c: [T, G, S].
    """

    x: Tensor
    dt: Tensor
    b: Tensor
    c: Tensor

    def part(self, first: int, end: int) -> SsdInputs:
        """Return the inputs of the tokens from index ``first`` to ``end`` (exclusive)."""
        return SsdInputs(self.x[first:end], self.dt[first:end], self.b[first:end], self.c[first:end])


def ssd(inputs: SsdInputs, a: Tensor, before: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
    """Compute the recurrence over the tokens of each item.

    Args:
        a: [H], the negative decay rates.
        before: [N, H, P, S], the states before the items.

    Returns:
        The outputs, [T, H, P], and the states after the items, like ``before``.
    """
    num = batch.num_decodes
    outputs, states = [], []
    if num:
        y, after = _step(inputs.part(0, num), a, before[:num])
        outputs.append(y)
        states.append(after)
    first = num
    for item, length in enumerate(batch.query_lens[num:], num):
        y, after = _scan(inputs.part(first, first + length), a, before[item])
        outputs.append(y)
        states.append(after[None])
        first += length
    return torch.cat(outputs), torch.cat(states)


def _step(inputs: SsdInputs, a: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Advance N states by one token each."""
    b, c = _per_head(inputs.b, len(a)), _per_head(inputs.c, len(a))  # [N, H, S]
    decay = torch.exp(inputs.dt * a)[..., None, None]
    after = before * decay + (inputs.x * inputs.dt[..., None])[..., None] * b[:, :, None]
    return torch.einsum("nhps,nhs->nhp", after, c), after


def _scan(inputs: SsdInputs, a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one state over all tokens, block by block."""
    outputs = []
    for first in range(0, len(inputs.x), BLOCK):
        y, state = _block(inputs.part(first, first + BLOCK), a, state)
        outputs.append(y)
    return torch.cat(outputs), state


def _block(inputs: SsdInputs, a: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    b, c = _per_head(inputs.b, len(a)), _per_head(inputs.c, len(a))  # [L, H, S]
    x = inputs.x * inputs.dt[..., None]
    total = (inputs.dt * a).cumsum(0).T  # [H, L], the logarithm of the decay from before the block to each token
    between = total[:, :, None] - total[:, None, :]  # [H, L, L]: from a token to a later one
    is_later = torch.ones(between.shape[1:], dtype=torch.bool, device=x.device).tril()
    weights = torch.exp(between.masked_fill(~is_later, -torch.inf)) * torch.einsum("lhs,mhs->hlm", c, b)
    y = torch.einsum("hlm,mhp->lhp", weights, x)
    y = y + torch.einsum("lhs,hps->lhp", c, state) * torch.exp(total).T[..., None]
    rest = torch.exp(total[:, -1:] - total)  # [H, L]: from each token to the end of the block
    added = torch.einsum("hl,lhp,lhs->hps", rest, x, b)
    return y, state * torch.exp(total[:, -1])[:, None, None] + added


def step_sizes(dt: Tensor, bias: Tensor) -> Tensor:
    """Return the step sizes, [T, H], in float32. dt: the projected values."""
    return functional.softplus(dt.float() + bias)


def _per_head(grouped: Tensor, num_heads: int) -> Tensor:
    """Repeat the values of each group for its heads. grouped: [T, G, S]."""
    return grouped.repeat_interleave(num_heads // grouped.shape[1], 1)
