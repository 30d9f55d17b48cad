"""From logits to tokens. A row's draw depends on its own logits, its seed and the index of the output token only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ebbtide.errors import PlanError
from ebbtide.messages import SamplingParams
from ebbtide.plan import RowInit

from .top_p_top_k import Draw, draw_tokens

FORCED = 1e4  # added for logit_bias 100: larger than any logit, small enough that float32 still tells them apart
NOTHING = -1
BAN_AT, FORCE_AT = -100.0, 100.0


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """One row to sample: its number, the position of its last token, and the ids that may be sampled (``PlanItem``)."""

    row: int
    position: int
    mask: bytes = b""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the specs that asked: chosen [A], top_ids and top_values [A, K]; counts: how many."""

    asked: list[int]
    counts: list[int]
    chosen: Tensor
    top_ids: Tensor
    top_values: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens: int64 [S], one per spec, NOTHING for a mask that leaves nothing. logprobs: None when no spec asked."""

    tokens: Tensor
    logprobs: Logprobs | None


@dataclass(frozen=True, slots=True)
class Masks:
    """What some specs may not become. which: their numbers. banned: bool [M, vocab], on the device.

    empty: int64 on the host, the numbers of those that may become nothing at all.
    """

    which: list[int]
    banned: Tensor
    empty: Tensor

    def apply(self, logits: Tensor) -> None:
        """Leave each spec the ids of its mask, in place."""
        if len(self.which) == len(logits):
            logits.masked_fill_(self.banned, float("-inf"))
            return
        for place, number in enumerate(self.which):
            logits[number].masked_fill_(self.banned[place], float("-inf"))

    def restore(self, logits: Tensor, own: Tensor, changed: list[int]) -> None:
        """A mask outranks what else bans tokens: where nothing is left of it, the row's ``own`` logits decide in it.

        changed: the numbers of the specs whose logits are not their own.
        """
        for place in (place for place, number in enumerate(self.which) if number in changed):
            row = logits[self.which[place]]
            plain = own[self.which[place]].to(row.dtype).masked_fill(self.banned[place], float("-inf"))
            row.copy_(torch.where(row.amax() == float("-inf"), plain, row))


@dataclass(slots=True, eq=False)
class RowState:
    """The sampling state of one row on the device. bias, counts and seen are None when the row has no use for them.

    counts: float32 [vocab], how often each token was put out. seen: bool [vocab], prompt and outputs.
    """

    params: SamplingParams
    prompt_len: int
    bias: Tensor | None
    banned_early: Tensor
    counts: Tensor | None
    seen: Tensor | None

    @property
    def penalized(self) -> bool:
        """Whether the row's own tokens count."""
        return self.counts is not None or self.seen is not None

    def adjusts(self, index: int) -> bool:
        """Whether the logits of output token ``index`` must be changed before the choice."""
        return self.penalized or self.bias is not None or self._too_early(index)

    def adjust(self, logits: Tensor, index: int) -> None:
        """Penalties, then bias, then the ban on an early end, in place on one row of float32 logits."""
        params = self.params
        if self.seen is not None:
            penalty = params.repetition_penalty
            logits.copy_(torch.where(self.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits))
        if self.counts is not None:
            logits.sub_(self.counts * params.frequency_penalty + (self.counts > 0) * params.presence_penalty)
        if self.bias is not None:
            logits.add_(self.bias)
        if self._too_early(index):
            logits[self.banned_early] = float("-inf")

    def note(self, token: Tensor) -> None:
        """Count a token that this row just got, int64 [1]."""
        if self.counts is not None:
            self.counts[token] += 1.0
        if self.seen is not None:
            self.seen[token] = True

    def _too_early(self, index: int) -> bool:
        return index < self.params.min_tokens


class Sampler:
    """The sampling state of all rows."""

    def __init__(self, num_rows: int, vocab_size: int, eos_token_ids: tuple[int, ...], device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._rows: list[RowState | None] = [None] * num_rows

    def start_row(self, row: int, init: RowInit) -> None:
        """Build a row's state from nothing else than ``init``. Raises PlanError for a token id out of range."""
        params = init.sampling
        self._check_ids(row, [*params.logit_bias, *params.stop_token_ids, *init.known])
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)}
        counts = seen = None
        if params.presence_penalty or params.frequency_penalty:
            counts = self._ids(init.known[init.prompt_len :]).bincount(minlength=self._vocab_size).float()
        if params.repetition_penalty != 1.0:
            seen = torch.zeros(self._vocab_size, dtype=torch.bool, device=self._device)
            seen[self._ids(init.known)] = True
        bias = self._bias(params.logit_bias) if params.logit_bias else None
        self._rows[row] = RowState(params, init.prompt_len, bias, self._ids(sorted(ends)), counts, seen)

    def sample(self, logits: Tensor, specs: list[SampleSpec]) -> Sampled:
        """Choose a token for each spec from its row of logits, [S, vocab]. The logits are left as they are."""
        states = [self._state(spec.row) for spec in specs]
        indices = [spec.position + 1 - state.prompt_len for spec, state in zip(specs, states, strict=True)]
        adjusted = _adjusted(logits, states, indices)
        masks = self._masks(specs)
        if masks is not None:
            adjusted = logits.clone() if adjusted is logits else adjusted
            masks.apply(adjusted)
            masks.restore(adjusted, logits, [n for n, state in enumerate(states) if state.adjusts(indices[n])])
        tokens = adjusted.max(-1).indices  # argmax takes four times as long on the CPU
        drawn = [number for number, state in enumerate(states) if state.params.temperature > 0]
        if drawn:
            draws = [Draw(states[number].params, indices[number]) for number in drawn]
            which = torch.tensor(drawn, device=self._device)
            tokens[which] = draw_tokens(adjusted[which].float(), draws)
        for number, state in enumerate(states):
            if state.penalized:
                state.note(tokens[number : number + 1])
        sampled = Sampled(tokens, _logprobs(logits, tokens, states))
        if masks is not None:
            tokens[masks.empty] = NOTHING
        return sampled

    def _masks(self, specs: list[SampleSpec]) -> Masks | None:
        """The specs' masks; None when no spec has one. Raises PlanError for a mask of too few ids."""
        which = [number for number, spec in enumerate(specs) if spec.mask]
        if not which:
            return None
        banned = np.empty((len(which), self._vocab_size), dtype=bool)
        for place, number in enumerate(which):
            bits = np.unpackbits(np.frombuffer(specs[number].mask, dtype=np.uint8), bitorder="little")
            if len(bits) < self._vocab_size:
                raise PlanError(f"Row {specs[number].row} has a mask of {len(bits)} ids for {self._vocab_size}.")
            np.equal(bits[: self._vocab_size], 0, out=banned[place])
        empty = [number for number, row in zip(which, banned, strict=True) if row.all()]
        return Masks(which, torch.from_numpy(banned).to(self._device), torch.tensor(empty, dtype=torch.int64))

    def _state(self, row: int) -> RowState:
        state = self._rows[row]
        if state is None:
            raise PlanError(f"Row {row} is sampled but was never started.")
        return state

    def _bias(self, logit_bias: dict[int, float]) -> Tensor:
        bias = torch.zeros(self._vocab_size, device=self._device)
        values = [_bias_value(value) for value in logit_bias.values()]
        bias[self._ids(list(logit_bias))] = torch.tensor(values, device=self._device)
        return bias

    def _ids(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._device)

    def _check_ids(self, row: int, ids: list[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab_size):
            raise PlanError(f"Row {row} is started with token ids outside 0..{self._vocab_size - 1}.")


def _bias_value(value: float) -> float:
    if value <= BAN_AT:
        return float("-inf")
    return FORCED if value >= FORCE_AT else value


def _adjusted(logits: Tensor, states: list[RowState], indices: list[int]) -> Tensor:
    """The logits with every row's own changes; a float32 copy if there are any."""
    changing = [number for number, state in enumerate(states) if state.adjusts(indices[number])]
    if not changing:
        return logits
    adjusted = logits.to(torch.float32, copy=True)
    for number in changing:
        states[number].adjust(adjusted[number], indices[number])
    return adjusted


def _logprobs(logits: Tensor, tokens: Tensor, states: list[RowState]) -> Logprobs | None:
    """Log-softmax of the raw logits: what the model believed, before temperature, penalties and bias."""
    asked = [(number, count) for number, state in enumerate(states) if (count := state.params.logprobs) is not None]
    if not asked:
        return None
    numbers, counts = [number for number, _ in asked], [count for _, count in asked]
    which = torch.tensor(numbers, device=logits.device)
    values = logits[which].float().log_softmax(-1)
    top = values.topk(max(counts), -1)
    chosen = values.gather(1, tokens[which, None])[:, 0]
    return Logprobs(numbers, counts, chosen, top.indices, top.values)
