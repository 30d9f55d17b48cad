"""Samples the tokens of a step: penalties, bias and masks, then the choice of the tokens and their log-probabilities.

The sampler stores its state per row and does not know about requests. A step is staged on the host first, so that all
its input tensors are copied to the device together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.messages import TokenLogprob
from ebbtide.plan import RowInit

from ..transfers import DeviceToHostCopy, host_tensor
from .row_state import RowInputs, RowState, stage_row
from .token_masks import TokenMasks, stage_masks
from .top_p_top_k import Draw, DrawFunction, DrawInputs, draw_tokens, stage_draws

NO_TOKEN = -1  # returned instead of a token id if the mask allows no token
INVALID_LOGITS = -2  # returned instead of a token id if the logits are NaN or infinite, or leave no token to sample


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One token to sample.

    Attributes:
        row: number of the row.
        position: position of the row's last token, which the sampled token follows.
        mask: see ``PlanItem``.
    """

    row: int
    position: int
    mask: bytes = b""


@dataclass(frozen=True, slots=True)
class LogprobInputs:
    """The A samples for which log-probabilities are requested.

    Attributes:
        asked: the indices of these samples.
        counts: number of most likely tokens to return for each of them.
        which: int64 [A], the values of ``asked`` as a tensor.
    """

    asked: list[int]
    counts: list[int]
    which: Tensor


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """The inputs for sampling the S tokens of one step.

    Attributes:
        row_numbers: the numbers of the sampled rows, on the host.
        rows: int64 [S], the values of ``row_numbers`` as a tensor.
        indices: index of each sampled token in the output of its row.
        masks: None if no sample has a mask.
        draws: None if every sample is greedy.
        logprobs: None if no log-probabilities are requested.
        num_ids: number of token ids that may be sampled.
    """

    row_numbers: list[int]
    rows: Tensor
    indices: list[int]
    masks: TokenMasks | None
    draws: DrawInputs | None
    logprobs: LogprobInputs | None
    num_ids: int


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log-probabilities of A sampled tokens, and of the K most likely tokens at their positions.

    Attributes:
        asked, counts: see ``LogprobInputs``.
        chosen: float32 [A], the log-probabilities of the sampled tokens.
        top_ids: int64 [A, K], the ids of the most likely tokens.
        top_values: float32 [A, K], the log-probabilities of ``top_ids``.
    """

    asked: list[int]
    counts: list[int]
    chosen: Tensor
    top_ids: Tensor
    top_values: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """The result of one step's sampling.

    Attributes:
        tokens: int64 [S], the token ids; NO_TOKEN or INVALID_LOGITS if no token could be sampled.
        logprobs: None if no log-probabilities were requested.
    """

    tokens: Tensor
    logprobs: Logprobs | None


class PendingLogprobs:
    """The log-probabilities of one step. Their computation may still be in progress."""

    def __init__(self, logprobs: Logprobs) -> None:
        self._places = {number: place for place, number in enumerate(logprobs.asked)}
        self._counts = logprobs.counts
        self._copies = [DeviceToHostCopy(part) for part in (logprobs.chosen, logprobs.top_ids, logprobs.top_values)]
        self._values: list[list[Any]] = []

    def of(self, sample: int) -> TokenLogprob | None:
        """Return the log-probabilities of a sample; None if its row requested none. Blocks until they are computed."""
        place = self._places.get(sample)
        if place is None:
            return None
        self._values = self._values or [copy.wait().tolist() for copy in self._copies]
        chosen, ids, values = self._values
        count = self._counts[place]
        return TokenLogprob(chosen[place], ids[place][:count], values[place][:count])


class Sampler:
    """Samples tokens, and holds the sampling state of all rows."""

    def __init__(
        self, num_rows: int, vocab_size: int, eos_token_ids: tuple[int, ...], draw: DrawFunction = draw_tokens
    ) -> None:
        """draw: draws the tokens of rows that are not greedy."""
        self._draw = draw
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(token for token in eos_token_ids if 0 <= token < vocab_size)
        self._rows: list[RowState | None] = [None] * num_rows

    def stage_row(self, row: int, init: RowInit) -> RowInputs:
        """Discard a row's state and stage a new one from ``init``. Raises PlanError if a token id is out of range."""
        params = init.sampling
        ids = [*params.logit_bias, *params.stop_token_ids, *init.known]
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
            raise PlanError(f"Row {row} is started with token ids outside 0..{self._vocab_size - 1}.")
        self._rows[row] = RowState(params, init.prompt_len)
        return stage_row(row, init, self._eos_token_ids)

    def start_row(self, inputs: RowInputs) -> None:
        """Build the state of a staged row from its uploaded inputs."""
        self._state(inputs.row).build(inputs, self._vocab_size)

    def stage(self, specs: list[SampleSpec], num_ids: int = 0) -> SamplingInputs:
        """Return the inputs for sampling ``specs``, on the host. Rows that start in this step must have been staged.

        num_ids: value of ``StepPlan.num_token_ids``.
        Raises PlanError if a row was never started or a mask has too few bits.
        """
        num_ids = min(num_ids or self._vocab_size, self._vocab_size)
        states = [self._state(spec.row) for spec in specs]
        indices = [spec.position + 1 - state.prompt_len for spec, state in zip(specs, states, strict=True)]
        draws = {n: Draw(state.params, indices[n]) for n, state in enumerate(states) if state.params.temperature > 0}
        rows = [spec.row for spec in specs]
        return SamplingInputs(
            row_numbers=rows,
            rows=host_tensor(rows, np.int64),
            indices=indices,
            masks=stage_masks([spec.mask for spec in specs], self._vocab_size),
            draws=stage_draws(draws, num_ids) if draws else None,
            logprobs=_stage_logprobs(states),
            num_ids=num_ids,
        )

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Sampled:
        """Choose a token from each row of ``logits``, [S, vocab]. The inputs must have been uploaded.

        The logits and the state of the rows are not changed; ``note`` records the tokens.
        """
        states = [self._state(row) for row in inputs.row_numbers]
        changed = [n for n, state in enumerate(states) if state.adjusts(inputs.indices[n])]
        adjusted = logits.to(torch.float32, copy=True) if changed else logits
        for number in changed:
            states[number].adjust(adjusted[number], inputs.indices[number])
        if inputs.masks is not None:
            adjusted = logits.clone() if adjusted is logits else adjusted
            inputs.masks.apply(adjusted)
            inputs.masks.restore(adjusted, logits, changed)
        choices = adjusted[:, : inputs.num_ids]  # a view
        peaks, tokens = choices.max(-1)  # on the CPU, argmax takes four times as long
        invalid = ~peaks.isfinite()  # the maximum is NaN if any value is NaN
        if adjusted is not logits:
            invalid |= ~logits[:, : inputs.num_ids].amax(-1).isfinite()
        if inputs.draws is not None:
            tokens[inputs.draws.which] = self._draw(choices[inputs.draws.which].float(), inputs.draws)
        logprobs = None if inputs.logprobs is None else _logprobs(logits, tokens, inputs.logprobs)
        if logprobs is not None and inputs.logprobs is not None:
            # The log-probability is NaN if the logit of an id without a token is NaN.
            invalid[inputs.logprobs.which] |= logprobs.chosen.isnan()
        tokens.masked_fill_(invalid, INVALID_LOGITS)
        if inputs.masks is not None:
            tokens[inputs.masks.empty] = NO_TOKEN
        return Sampled(tokens, logprobs)

    def is_plain(self, inputs: SamplingInputs) -> bool:
        """Return True if no sample has a mask, penalty or bias, bans end tokens, or requests log-probabilities.

        The samples then depend only on the logits and ``inputs.draws``.
        """
        rows = zip(inputs.row_numbers, inputs.indices, strict=True)
        return (
            inputs.masks is None
            and inputs.logprobs is None
            and not any(self._state(row).adjusts(index) for row, index in rows)
        )

    def note(self, inputs: SamplingInputs, tokens: Tensor) -> None:
        """Record sampled tokens, int64 [S], in the rows whose penalties depend on them."""
        for number, row in enumerate(inputs.row_numbers):
            state = self._state(row)
            if state.penalized:
                state.note(tokens[number : number + 1])

    def _state(self, row: int) -> RowState:
        state = self._rows[row]
        if state is None:
            raise PlanError(f"Row {row} is sampled but was never started.")
        return state


def _stage_logprobs(states: list[RowState]) -> LogprobInputs | None:
    asked = {number: count for number, state in enumerate(states) if (count := state.params.logprobs) is not None}
    if not asked:
        return None
    return LogprobInputs(list(asked), list(asked.values()), host_tensor(list(asked), np.int64))


def _logprobs(logits: Tensor, tokens: Tensor, inputs: LogprobInputs) -> Logprobs:
    """Compute log-probabilities from the raw logits: the distribution before temperature, penalties and bias."""
    values = logits[inputs.which].float().log_softmax(-1)
    top = values.topk(max(inputs.counts), -1)
    chosen = values.gather(1, tokens[inputs.which, None])[:, 0]
    return Logprobs(inputs.asked, inputs.counts, chosen, top.indices, top.values)
