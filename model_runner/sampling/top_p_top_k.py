"""Random choice from filtered logits, one uniform number a row. Knows nothing of rows' histories."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ebbtide.messages import SamplingParams

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # step of SplitMix64 (Steele, Lea, Flood 2014)
UNIFORM_BITS = 52  # one less than a double holds, so that uniform * total rounds to less than total
LEAST_TEMPERATURE = 1e-5  # below it the division would overflow; the choice is greedy long before
SORTED_FIRST = 1024  # on the CPU sorting all of a large vocabulary costs more than the model's head


@dataclass(frozen=True, slots=True)
class Draw:
    """Parameters of one row and the index of the output token to be drawn."""

    params: SamplingParams
    index: int


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that is a hash of (seed, index): any output token can be drawn again, in any order."""
    state = _mix((seed + GOLDEN) & MASK64)
    bits = _mix((state + (index + 1) * GOLDEN) & MASK64)
    return float(bits >> (64 - UNIFORM_BITS)) / float(1 << UNIFORM_BITS)


def draw_tokens(logits: Tensor, draws: list[Draw]) -> Tensor:
    """One token per row of float32 logits [R, vocab] → int64 [R]: temperature, top_k, top_p, min_p, inverse CDF.

    The inverse is taken in the order of token ids over sums in float64. A row of nan gives some token and harms
    no other.
    """
    device = logits.device
    temperatures = torch.tensor([max(draw.params.temperature, LEAST_TEMPERATURE) for draw in draws], device=device)
    probs = (logits / temperatures[:, None]).softmax(-1)
    _filter(probs, draws)
    sums = probs.double().cumsum(-1)
    numbers = [uniform(draw.params.seed, draw.index) for draw in draws]
    targets = torch.tensor(numbers, dtype=torch.float64, device=device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, targets, right=True)[:, 0].clamp_(max=probs.shape[1] - 1)


def _filter(probs: Tensor, draws: list[Draw]) -> None:
    """Set what top_k, top_p and min_p exclude to zero, in place. Ties at the border go to the smaller token ids."""
    for keep, name in ((_keep_top, "top"), (_keep_min_p, "min_p")):
        rows = [number for number, draw in enumerate(draws) if _wants(name, draw.params, probs.shape[1])]
        if rows:
            which = torch.tensor(rows, device=probs.device)
            part = probs[which]
            probs[which] = part * keep(part, [draws[number].params for number in rows])


def _wants(name: str, params: SamplingParams, vocab_size: int) -> bool:
    if name == "min_p":
        return params.min_p > 0
    return 0 < params.top_k < vocab_size or params.top_p < 1


def _keep_min_p(probs: Tensor, params: list[SamplingParams]) -> Tensor:
    """bool [R, vocab]: at least ``min_p`` times as likely as the most likely token."""
    shares = torch.tensor([p.min_p for p in params], device=probs.device)
    return probs >= shares[:, None] * probs.amax(-1, keepdim=True)


def _keep_top(probs: Tensor, params: list[SamplingParams]) -> Tensor:
    """bool [R, vocab]: the top_k most likely, and of those the fewest whose share reaches top_p."""
    vocab_size = probs.shape[1]
    limits = torch.tensor([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], device=probs.device)
    shares = torch.tensor([p.top_p for p in params], device=probs.device)
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
    """How many tokens to keep and the least likely one's probability, both [R, 1], from the ``width`` most likely.

    Also bool [R]: whether ``width`` was enough for that row.
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
    """The finaliser of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)
