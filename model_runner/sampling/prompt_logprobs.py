"""Log-probabilities of tokens that are known already: the prompt's own. Never holds many rows of logits at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.messages import TokenLogprob
from ebbtide.plan import PromptLogprobSpec

from ..transfers import DeviceToHostCopy

SLICE_BYTES = 16 << 20  # float32 logits at a time: a chunk of 2,048 tokens has over a GiB of them


class PendingPromptLogprobs:
    """The prompt log-probabilities of one step, possibly still being computed."""

    def __init__(self, specs: list[PromptLogprobSpec], values: Tensor, indices: Tensor) -> None:
        self._specs = specs
        self._values = DeviceToHostCopy(values)
        self._indices = DeviceToHostCopy(indices)

    def wait(self) -> list[list[TokenLogprob]]:
        """One list per spec, parallel to its targets."""
        values, indices = self._values.wait().tolist(), self._indices.wait().tolist()
        result: list[list[TokenLogprob]] = []
        for spec in self._specs:
            done, size = sum(map(len, result)), len(spec.targets)
            rows = zip(values[done : done + size], indices[done : done + size], strict=True)
            top = slice(1, 1 + spec.num_top)
            result.append([TokenLogprob(value[0], index[top], value[top], index[0]) for value, index in rows])
        return result


def compute_prompt_logprobs(
    states: Tensor, logits: Callable[[Tensor], Tensor], specs: list[PromptLogprobSpec], vocab_size: int
) -> PendingPromptLogprobs:
    """Log-softmax of the raw logits at each target, and of the likeliest tokens.

    states: [P, …], what the model made of the tokens before the targets, all specs in order; ``logits`` turns some
    of them into [p, vocab_size]. Raises PlanError for a target outside the vocabulary.
    """
    ids = [target for spec in specs for target in spec.targets]
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise PlanError(f"Prompt log-probabilities are asked for token ids outside 0..{vocab_size - 1}.")
    targets = torch.tensor(ids, device=states.device)
    num_top = min(max(spec.num_top for spec in specs), vocab_size)
    rows = max(SLICE_BYTES // (4 * vocab_size), 1)
    parts = [
        _score(logits(some), wanted, num_top)
        for some, wanted in zip(torch.split(states, rows), torch.split(targets, rows), strict=True)
    ]
    return PendingPromptLogprobs(specs, torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def _score(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """For p targets, both [p, 1 + num_top]: log-probabilities, and the target's rank followed by the likeliest ids."""
    values = logits.float().log_softmax(-1)
    chosen = values.gather(1, targets[:, None])
    ranks = (values > chosen).sum(-1, keepdim=True) + 1
    top = values.topk(num_top, -1)
    return torch.cat((chosen, top.values), 1), torch.cat((ranks, top.indices), 1)
