"""Draws tokens at random from logits with temperature, top_k, top_p and min_p, independently of earlier tokens.

Each token uses one uniform random number, which depends only on the seed and the token's index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ebbtide.messages import SamplingParams

from ..kernels.draw_tokens import load_draw_tokens
from ..transfers import host_tensor

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # step of SplitMix64 (Steele, Lea, Flood 2014)
UNIFORM_BITS = 52  # one bit less than the precision of a double, so that uniform * total rounds to less than total
# At lower temperatures the division would overflow. The choice is greedy at much higher temperatures already.
LEAST_TEMPERATURE = 1e-5
SORTED_FIRST = 1024  # number of most likely tokens to sort: sorting a whole vocabulary is slow on the CPU


@dataclass(frozen=True, slots=True)
class Draw:
    """One row from which a token is drawn: its sampling parameters and the index of the output token."""

    params: SamplingParams
    index: int


@dataclass(frozen=True, slots=True)
class TopInputs:
    """The R drawn rows that have top_k or top_p.

    Attributes:
        which: int64 [R], indices into the drawn rows.
        limits: int64 [R], the values of top_k; the vocabulary size if top_k is off.
        shares: float32 [R], the values of top_p.
    """

    which: Tensor
    limits: Tensor
    shares: Tensor


@dataclass(frozen=True, slots=True)
class MinPInputs:
    """The Q drawn rows that have min_p.

    Attributes:
        which: int64 [Q], indices into the drawn rows.
        shares: float32 [Q], the values of min_p.
    """

    which: Tensor
    shares: Tensor


@dataclass(frozen=True, slots=True)
class DrawInputs:
    """The inputs for drawing D tokens in one step.

    Attributes:
        which: int64 [D], indices of the rows of logits from which a token is drawn.
        temperatures: float32 [D].
        uniforms: float64 [D], one uniform random number in [0, 1) per row.
        top: None if no row has top_k or top_p.
        min_p: None if no row has min_p.
    """

    which: Tensor
    temperatures: Tensor
    uniforms: Tensor
    top: TopInputs | None
    min_p: MinPInputs | None


# Draws a token from each row of float32 logits, [D, vocab] → int64 [D]; see ``draw_tokens``.
DrawFunction = Callable[[Tensor, DrawInputs], Tensor]


def uniform(seed: int, index: int) -> float:
    """Return a number in [0, 1) that depends only on (seed, index), so that tokens can be drawn again in any order."""
    state = _mix((seed + GOLDEN) & MASK64)
    bits = _mix((state + (index + 1) * GOLDEN) & MASK64)
    return float(bits >> (64 - UNIFORM_BITS)) / float(1 << UNIFORM_BITS)


def stage_draws(draws: dict[int, Draw], vocab_size: int) -> DrawInputs:
    """Return the inputs of ``draw_tokens``, on the host. draws: index of a row of logits → its parameters."""
    params = [draw.params for draw in draws.values()]
    top = {n: p for n, p in enumerate(params) if 0 < p.top_k < vocab_size or p.top_p < 1}
    min_p = {n: p.min_p for n, p in enumerate(params) if p.min_p > 0}
    return DrawInputs(
        which=host_tensor(list(draws), np.int64),
        temperatures=host_tensor([max(p.temperature, LEAST_TEMPERATURE) for p in params], np.float32),
        uniforms=host_tensor([uniform(draw.params.seed, draw.index) for draw in draws.values()], np.float64),
        top=_stage_top(top, vocab_size) if top else None,
        min_p=MinPInputs(host_tensor(list(min_p), np.int64), host_tensor(list(min_p.values()), np.float32))
        if min_p
        else None,
    )


def _stage_top(params: dict[int, SamplingParams], vocab_size: int) -> TopInputs:
    limits = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params.values()]
    return TopInputs(
        which=host_tensor(list(params), np.int64),
        limits=host_tensor(limits, np.int64),
        shares=host_tensor([p.top_p for p in params.values()], np.float32),
    )


def draw_tokens(logits: Tensor, inputs: DrawInputs) -> Tensor:
    """Draw one token from each row of logits, float32 [D, vocab] → int64 [D].

    Temperature, top_k, top_p and min_p are applied in this order; then the token is found by the inverse CDF, which
    runs over the token ids in float64. A row that contains NaN gives an arbitrary token and affects no other row. On
    the CPU, compiled code is used if it can be built.
    """
    function = load_draw_tokens() if logits.device.type == "cpu" else None
    return draw_with_torch(logits, inputs) if function is None else _draw_compiled(function, logits, inputs)


def draw_with_torch(logits: Tensor, inputs: DrawInputs) -> Tensor:
    """Do the same as ``draw_tokens``, with torch on any device."""
    probs = (logits / inputs.temperatures[:, None]).softmax(-1)
    if inputs.top is not None:
        part = probs[inputs.top.which]
        probs[inputs.top.which] = part * _keep_top(part, inputs.top)
    if inputs.min_p is not None:
        part = probs[inputs.min_p.which]
        probs[inputs.min_p.which] = part * (part >= inputs.min_p.shares[:, None] * part.amax(-1, keepdim=True))
    sums = probs.double().cumsum(-1)
    targets = inputs.uniforms[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, targets, right=True)[:, 0].clamp_(max=probs.shape[1] - 1)


def _draw_compiled(function: Callable[..., None], logits: Tensor, inputs: DrawInputs) -> Tensor:
    logits = logits.contiguous()
    num_rows, vocab_size = logits.shape
    limits, shares = torch.full((num_rows,), vocab_size), torch.ones(num_rows)
    if inputs.top is not None:
        limits[inputs.top.which], shares[inputs.top.which] = inputs.top.limits, inputs.top.shares
    least = torch.zeros(num_rows)
    if inputs.min_p is not None:
        least[inputs.min_p.which] = inputs.min_p.shares
    tokens = torch.empty(num_rows, dtype=torch.int64)
    parameters = (inputs.temperatures, limits, shares, least, inputs.uniforms)
    pointers = [tensor.data_ptr() for tensor in parameters]
    num_threads = torch.get_num_threads()
    function(logits.data_ptr(), num_rows, vocab_size, *pointers, num_threads, tokens.data_ptr())
    return tokens


def _keep_top(probs: Tensor, inputs: TopInputs) -> Tensor:
    """Return the tokens that top_k and top_p allow, bool [R, vocab].

    They are the fewest of the top_k most likely tokens whose probabilities add up to top_p. Among tokens with equal
    probabilities at the border, those with smaller ids are kept.
    """
    vocab_size = probs.shape[1]
    limits, shares = inputs.limits, inputs.shares
    width = vocab_size if probs.device.type != "cpu" else min(vocab_size, SORTED_FIRST)
    counts, borders, settled = _borders(probs, limits, shares, width)
    if width < vocab_size and not bool(settled.all()):
        rest = ~settled
        counts[rest], borders[rest], _ = _borders(probs[rest], limits[rest], shares[rest], vocab_size)
    above = probs > borders
    ties = probs == borders
    room = counts - above.sum(-1, keepdim=True)
    return above | (ties & (ties.cumsum(-1) <= room))


def _borders(probs: Tensor, limits: Tensor, shares: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of tokens to keep and the probability of the least likely of them, both [R, 1].

    Only the ``width`` most likely tokens are considered. The third result, bool [R], is True for the rows for which
    these tokens were sufficient.
    """
    ordered = probs.topk(width, -1).values.double()
    ranks = torch.arange(1, width + 1, device=probs.device)
    sums = ordered.where(ranks <= limits[:, None], 0.0).cumsum(-1)
    totals = torch.where(limits <= width, sums[:, -1], probs.double().sum(-1))
    wanted = (shares * totals)[:, None]
    settled = (limits <= width) | (sums[:, -1] >= wanted[:, 0])
    counts = ((sums < wanted).sum(-1, keepdim=True) + 1).clamp_(max=width).minimum(limits[:, None])
    return counts, ordered.gather(1, counts - 1).to(probs.dtype), settled


def _mix(value: int) -> int:
    """Apply the finalizer of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)
