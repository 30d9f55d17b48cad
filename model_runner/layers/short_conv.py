"""A causal convolution over a few tokens of each item, for items of different lengths in one batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class ConvIndex:
    """Where the inputs of a convolution are: indices into T new inputs, followed by the N states of K - 1 inputs.

    Attributes:
        taps: int64 [K, T]: for each tap, oldest first, the input of each token.
        kept: int64 [N * (K - 1)]: the last K - 1 inputs of each item, oldest first, which are its new state.
    """

    taps: Tensor
    kept: Tensor

    @classmethod
    def of(cls, batch: ForwardBatch, num_taps: int) -> ConvIndex:
        """Compute the indices of a batch. num_taps: K."""
        ends = batch.cu_query_lens[1:].long()
        lens = ends - batch.cu_query_lens[:-1]
        num_items, num_tokens, kept = len(ends), batch.num_tokens, num_taps - 1
        items = torch.arange(num_items, device=ends.device)
        owners = torch.repeat_interleave(items, lens, output_size=num_tokens)
        tokens = torch.arange(num_tokens, device=ends.device)
        offsets = tokens - batch.cu_query_lens[:-1].long()[owners]  # index of the token in its item
        back = torch.arange(kept, -1, -1, device=ends.device)[:, None]  # how many tokens before it a tap reads
        old = num_tokens + owners * kept + kept + offsets - back
        taps = torch.where(offsets >= back, tokens - back, old)
        back = torch.arange(kept, 0, -1, device=ends.device)  # from the end of the item
        old = num_tokens + items[:, None] * kept + kept + lens[:, None] - back
        return cls(taps, torch.where(lens[:, None] >= back, ends[:, None] - back, old).flatten())


def causal_conv(
    x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None, index: ConvIndex
) -> tuple[Tensor, Tensor]:
    """Convolve each channel of x over the tokens of each item.

    Args:
        x: [T, channels].
        before: [N, K - 1, channels], the inputs before each item's first token, oldest first.
        weight: [channels, K], the tap of the newest token last.
        bias: [channels] or None.

    Returns:
        The outputs, [T, channels], and the new states, like ``before``.
    """
    inputs = torch.cat((x, before.flatten(0, 1)))
    out = sum(inputs[tap] * factor for tap, factor in zip(index.taps, weight.T, strict=True))
    assert isinstance(out, Tensor)
    return out if bias is None else out + bias, inputs[index.kept].view_as(before)
