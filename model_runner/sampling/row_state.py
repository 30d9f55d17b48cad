"""The sampling state of one row: the parameters and earlier tokens that change the row's logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ebbtide.messages import SamplingParams
from ebbtide.plan import RowInit

from ..transfers import host_tensor

# Added to a logit for logit_bias 100: larger than any logit, but small enough that float32 distinguishes the sums.
FORCED = 1e4
BAN_AT, FORCE_AT = -100.0, 100.0


@dataclass(frozen=True, slots=True)
class RowInputs:
    """The tensors from which the state of a row is built.

    Attributes:
        row: number of the row.
        ends: int64 [E], the token ids that end the output.
        bias_ids: int64 [B], the token ids in ``logit_bias``.
        bias: float32 [B], the values to add to their logits.
        known: int64 [K], the prompt and output tokens so far; empty if no penalty needs them.
    """

    row: int
    ends: Tensor
    bias_ids: Tensor
    bias: Tensor
    known: Tensor


@dataclass(slots=True, eq=False)
class RowState:
    """The state of one row. Its tensors exist after ``build``.

    Attributes:
        params: the request's sampling parameters.
        prompt_len: number of prompt tokens.
        ends: int64 [E], the ids of the end tokens, which are banned until there are ``min_tokens`` outputs.
        bias: float32 [vocab], the values to add to the logits; None without ``logit_bias``.
        counts: float32 [vocab], the number of times that each token was output; None if no penalty needs it.
        seen: bool [vocab], True for the tokens of prompt and outputs; None if no penalty needs it.
    """

    params: SamplingParams
    prompt_len: int
    ends: Tensor = field(init=False)
    bias: Tensor | None = field(init=False)
    counts: Tensor | None = field(init=False)
    seen: Tensor | None = field(init=False)

    def build(self, inputs: RowInputs, vocab_size: int) -> None:
        """Create the tensors from uploaded inputs, on the device of the inputs."""
        device = inputs.known.device
        self.ends = inputs.ends.clone()
        self.bias = self.counts = self.seen = None
        if self.params.logit_bias:
            self.bias = torch.zeros(vocab_size, device=device).index_copy_(0, inputs.bias_ids, inputs.bias)
        if self.params.presence_penalty or self.params.frequency_penalty:
            outputs = inputs.known[self.prompt_len :]
            ones = torch.ones(outputs.shape, device=device)
            self.counts = torch.zeros(vocab_size, device=device).index_add_(0, outputs, ones)  # bincount would block
        if self.params.repetition_penalty != 1.0:
            self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device).index_fill_(0, inputs.known, True)

    @property
    def penalized(self) -> bool:
        """True if the row's earlier tokens change its logits."""
        return self.counts is not None or self.seen is not None

    def adjusts(self, index: int) -> bool:
        """Return True if the logits of output token ``index`` must be changed before sampling."""
        return self.penalized or self.bias is not None or self._too_early(index)

    def adjust(self, logits: Tensor, index: int) -> None:
        """Change logits, float32 [vocab], in place: penalties, then the bias, then the ban of end tokens."""
        params = self.params
        if self.seen is not None:
            penalty = params.repetition_penalty
            logits.copy_(torch.where(self.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits))
        if self.counts is not None:
            logits.sub_(self.counts * params.frequency_penalty + (self.counts > 0) * params.presence_penalty)
        if self.bias is not None:
            logits.add_(self.bias)
        if self._too_early(index):
            logits[self.ends] = float("-inf")

    def note(self, token: Tensor) -> None:
        """Record a sampled token, int64 [1]."""
        if self.counts is not None:
            self.counts[token] += 1.0
        if self.seen is not None:
            self.seen[token] = True

    def _too_early(self, index: int) -> bool:
        return index < self.params.min_tokens


def stage_row(row: int, init: RowInit, eos_token_ids: tuple[int, ...]) -> RowInputs:
    """Return the tensors from which a row's state is built, on the host."""
    params = init.sampling
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
    penalized = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    return RowInputs(
        row,
        ends=host_tensor(sorted(ends), np.int64),
        bias_ids=host_tensor(list(params.logit_bias), np.int64),
        bias=host_tensor([_bias_value(value) for value in params.logit_bias.values()], np.float32),
        known=host_tensor(init.known if penalized else [], np.int64),
    )


def _bias_value(value: float) -> float:
    if value <= BAN_AT:
        return float("-inf")
    return FORCED if value >= FORCE_AT else value
