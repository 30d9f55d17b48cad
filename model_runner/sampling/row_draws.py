"""Sampling of a fixed number of rows, greedy or random, without reading values on the host. It can run in a graph.

It chooses the same tokens as ``Sampler.sample`` for rows without penalties, bias, mask and log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..transfers import host_tensor
from .sampler import INVALID_LOGITS, SamplingInputs
from .top_p_top_k import DrawInputs, MinPInputs, TopInputs, draw_with_torch


@dataclass(frozen=True, slots=True)
class RowDraws:
    """The sampling parameters of S rows. All tensors are on one device.

    Attributes:
        temperatures: float32 [S]; 0 for a greedy row.
        uniforms: float64 [S], one uniform random number in [0, 1) per row.
        limits: int64 [S], the values of top_k; the vocabulary size if top_k is off.
        shares: float32 [S], the values of top_p.
        least: float32 [S], the values of min_p.
        num_ids: int64 [1], the number of token ids that may be sampled.
    """

    temperatures: Tensor
    uniforms: Tensor
    limits: Tensor
    shares: Tensor
    least: Tensor
    num_ids: Tensor


def stage_row_draws(inputs: SamplingInputs, size: int, vocab_size: int) -> RowDraws:
    """Return the parameters of ``size`` rows, on the host: the staged rows, then greedy padding rows."""
    temperatures, uniforms = np.zeros(size, dtype=np.float32), np.zeros(size)
    limits, shares, least = np.full(size, vocab_size), np.ones(size, dtype=np.float32), np.zeros(size, dtype=np.float32)
    draws = inputs.draws
    if draws is not None:
        which = draws.which.numpy()
        temperatures[which], uniforms[which] = draws.temperatures.numpy(), draws.uniforms.numpy()
        if draws.top is not None:
            part = which[draws.top.which.numpy()]
            limits[part], shares[part] = draws.top.limits.numpy(), draws.top.shares.numpy()
        if draws.min_p is not None:
            least[which[draws.min_p.which.numpy()]] = draws.min_p.shares.numpy()
    return RowDraws(
        temperatures=torch.from_numpy(temperatures),
        uniforms=torch.from_numpy(uniforms),
        limits=torch.from_numpy(limits),
        shares=torch.from_numpy(shares),
        least=torch.from_numpy(least),
        num_ids=host_tensor([inputs.num_ids], np.int64),
    )


def sample_rows(logits: Tensor, draws: RowDraws) -> Tensor:
    """Choose a token from each row of ``logits``, [S, vocab] → int64 [S]; INVALID_LOGITS if no token can be sampled."""
    num_rows, vocab_size = logits.shape
    ids = torch.arange(vocab_size, device=logits.device)
    choices = logits.float().masked_fill(ids >= draws.num_ids, float("-inf"))
    peaks, tokens = choices.max(-1)
    rows = torch.arange(num_rows, device=logits.device)
    is_drawn = draws.temperatures > 0
    inputs = DrawInputs(
        rows,
        torch.where(is_drawn, draws.temperatures, 1.0),
        draws.uniforms,
        TopInputs(rows, draws.limits, draws.shares),
        MinPInputs(rows, draws.least),
    )
    tokens = torch.where(is_drawn, draw_with_torch(choices, inputs), tokens)
    return tokens.masked_fill(~peaks.isfinite(), INVALID_LOGITS)
