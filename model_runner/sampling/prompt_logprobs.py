"""Computes log-probabilities of prompt tokens. Only a few rows of logits are in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.messages import TokenLogprob
from ebbtide.plan import PromptLogprobSpec

from ..transfers import DeviceToHostCopy, host_tensor

SLICE_BYTES = 16 << 20  # bytes of float32 logits in memory at a time: those of 2,048 tokens can exceed a GiB


class PendingPromptLogprobs:
    """The prompt log-probabilities of one step. Their computation may still be in progress."""

    def __init__(self, specs: list[PromptLogprobSpec], values: Tensor, indices: Tensor) -> None:
        self._specs = specs
        self._copies = (DeviceToHostCopy(values), DeviceToHostCopy(indices))
        self._lists: list[list[list[Any]]] = []

    def of(self, place: int) -> list[TokenLogprob]:
        """Return the entries of spec number ``place``, parallel to its targets. Blocks until they have been computed.

        A log-probability is NaN if the logits at its position are NaN or infinite.
        """
        self._lists = self._lists or [copy.wait().tolist() for copy in self._copies]
        values, indices = self._lists
        spec = self._specs[place]
        done, size = sum(len(before.targets) for before in self._specs[:place]), len(spec.targets)
        top = slice(1, 1 + spec.num_top)
        rows = zip(values[done : done + size], indices[done : done + size], strict=True)
        return [TokenLogprob(value[0], index[top], value[top], index[0]) for value, index in rows]


def stage_targets(specs: list[PromptLogprobSpec], vocab_size: int) -> Tensor:
    """Return the target token ids of all specs in order, int64 [P], on the host.

    Raises PlanError if a target is outside the vocabulary.
    """
    ids = [target for spec in specs for target in spec.targets]
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise PlanError(f"Prompt log-probabilities are requested for token ids outside 0..{vocab_size - 1}.")
    return host_tensor(ids, np.int64)


def compute_prompt_logprobs(
    states: Tensor,
    logits: Callable[[Tensor], Tensor],
    specs: list[PromptLogprobSpec],
    targets: Tensor,
    vocab_size: int,
) -> PendingPromptLogprobs:
    """Compute the log-softmax of the raw logits at each target and at the most likely tokens.

    states: [P, …], the model's states of the tokens before the targets.
    logits: function that converts p states to logits, [p, vocab].
    targets: int64 [P], the uploaded result of ``stage_targets``.
    """
    num_top = min(max(spec.num_top for spec in specs), vocab_size)
    rows = max(SLICE_BYTES // (4 * vocab_size), 1)
    parts = [
        _logprobs(logits(some), wanted, num_top)
        for some, wanted in zip(torch.split(states, rows), torch.split(targets, rows), strict=True)
    ]
    return PendingPromptLogprobs(specs, torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def _logprobs(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """Return two tensors [p, 1 + num_top] for p targets.

    The first has the log-probability of the target (NaN if the logits are NaN or infinite), then those of the most
    likely tokens. The second has the target's rank, then the ids of the most likely tokens.
    """
    values = logits.float().log_softmax(-1)
    chosen = values.gather(1, targets[:, None])
    chosen.masked_fill_(~values.amax(-1, keepdim=True).isfinite(), float("nan"))
    ranks = (values > chosen).sum(-1, keepdim=True) + 1
    top = values.topk(num_top, -1)
    return torch.cat((chosen, top.values), 1), torch.cat((ranks, top.indices), 1)
