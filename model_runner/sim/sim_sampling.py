"""Sampling of the simulated runner: an artificial distribution to which every sampling parameter is applied.

The hash of the context determines the order of the printable ASCII characters by probability. In one in EOS_EVERY
contexts, the end token is the most likely. For greedy rows without other parameters, only the first token is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ebbtide.errors import PlanError
from ebbtide.messages import SamplingParams, TokenLogprob
from ebbtide.plan import RowInit
from ebbtide.rng import uniform
from ebbtide.tokenization.vocabulary import SIM_EOS, SIM_VOCAB_SIZE

FIRST, COUNT = 32, 95  # printable ASCII
STEPS = [step for step in range(1, COUNT) if step % 5 and step % 19]  # coprime to COUNT, so that all are visited
EOS_EVERY = 128
NO_TOKEN = -1  # returned if the mask allows no token
INVALID_LOGITS = -2  # returned if the logits leave no token to sample
MASK = (1 << 64) - 1

Logits = NDArray[np.float64]


@dataclass(slots=True)
class SimRow:
    """The sampling state of one row.

    Attributes:
        sampling: the request's sampling parameters.
        prompt_len: number of prompt tokens.
        counts: token → number of times that it was output.
        seen: the tokens of the prompt and the outputs.
        last: the row's last sample; -1 before the first.
        script: the scripted output, see ``SimScript``; empty if there is none, None before the first sample.
    """

    sampling: SamplingParams
    prompt_len: int
    counts: Counter[int] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)
    last: int = -1
    script: Sequence[int | None] | None = None

    @classmethod
    def of(cls, init: RowInit) -> SimRow:
        """Create the state of a row at its admission."""
        row = cls(init.sampling, init.prompt_len)
        row.counts.update(init.known[init.prompt_len :])
        row.seen.update(init.known)
        return row

    @property
    def plain(self) -> bool:
        """True if the row is greedy, no parameter changes its logits, and no log-probabilities are requested."""
        s = self.sampling
        return not (s.temperature or s.logit_bias or s.min_tokens or s.logprobs is not None or self.penalized)

    @property
    def penalized(self) -> bool:
        """True if the row's earlier tokens change its logits."""
        s = self.sampling
        return bool(s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1.0)

    def note(self, token: int) -> None:
        """Record a sample."""
        self.last = token
        if self.penalized:
            self.counts[token] += 1
            self.seen.add(token)


def choose(
    row: SimRow, context: int, index: int, mask: bytes = b"", num_ids: int = 0
) -> tuple[int, TokenLogprob | None]:
    """Return output token ``index`` of a row, or NO_TOKEN or INVALID_LOGITS, and its log-probability if requested.

    The row is not changed. context: hash of the row's context. mask: see ``PlanItem``. num_ids: value of
    ``StepPlan.num_token_ids``.
    """
    allowed = _allowed(mask)
    if row.script:
        scripted = row.script[index] if index < len(row.script) else SIM_EOS
        if scripted is None:
            return INVALID_LOGITS, None
        if allowed is None or allowed[scripted]:
            top = row.sampling.logprobs
            return scripted, None if top is None else _logprob(_logits(context), scripted, top)
    if row.plain and allowed is None and not num_ids:
        return _first(context), None
    raw = _logits(context)
    token = _token(row, raw, index, allowed, num_ids)
    return token, _logprob(raw, token, row.sampling.logprobs) if token >= 0 else None


def _token(row: SimRow, raw: Logits, index: int, allowed: NDArray[np.bool_] | None, num_ids: int) -> int:
    """Return a token id, NO_TOKEN or INVALID_LOGITS."""
    logits = _adjusted(row, raw.copy(), index)
    if allowed is not None:
        if not allowed.any():
            return NO_TOKEN
        logits = _masked(logits, raw, allowed)
    logits[num_ids or SIM_VOCAB_SIZE :] = -np.inf
    if not (np.isfinite(raw.max()) and np.isfinite(logits.max())):
        return INVALID_LOGITS
    return _draw(row.sampling, logits, index)


def logprob_of(context: int, target: int, num_top: int) -> TokenLogprob:
    """Return the raw log-probability of ``target`` after a context; NaN if the logits are NaN."""
    log_probs = _log_softmax(_logits(context))
    rank = int((log_probs > log_probs[target]).sum()) + 1
    return _token_logprob(log_probs, target, num_top, rank)


def _first(context: int) -> int:
    spread = _spread(context)
    return SIM_EOS if spread % EOS_EVERY == 0 else FIRST + (spread >> 8) % COUNT


def _spread(context: int) -> int:
    mixed = ((context ^ (context >> 31)) * 0x9E3779B97F4A7C15) & MASK
    return mixed ^ (mixed >> 29)


def _logits(context: int) -> Logits:
    """Return the logits of the whole vocabulary. The most likely token is the result of ``_first``."""
    spread = _spread(context)
    logits: Logits = -30.0 - 0.01 * np.arange(SIM_VOCAB_SIZE, dtype=np.float64)
    start, step = (spread >> 8) % COUNT, STEPS[(spread >> 40) % len(STEPS)]
    logits[FIRST + (start + np.arange(COUNT) * step) % COUNT] = 3.0 - 0.7 * np.arange(COUNT).clip(max=40)
    logits[SIM_EOS] = 5.0 if spread % EOS_EVERY == 0 else -25.0
    return logits


def _adjusted(row: SimRow, logits: Logits, index: int) -> Logits:
    sampling = row.sampling
    if sampling.repetition_penalty != 1.0:
        for token in row.seen:
            factor = sampling.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in row.counts.items():
        logits[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
        if bias <= -100:
            logits[token] = -np.inf
    if index < sampling.min_tokens:
        logits[[SIM_EOS, *sampling.stop_token_ids]] = -np.inf
    return logits


def _allowed(mask: bytes) -> NDArray[np.bool_] | None:
    """Return the ids that may be sampled, bool [vocab]; None for all."""
    if not mask:
        return None
    allowed = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[:SIM_VOCAB_SIZE].astype(bool)
    if len(allowed) != SIM_VOCAB_SIZE:
        raise PlanError(f"a mask has {len(allowed)} bits for {SIM_VOCAB_SIZE} token ids")
    return allowed


def _masked(logits: Logits, raw: Logits, allowed: NDArray[np.bool_]) -> Logits:
    """Apply the mask. If bans leave no token of the mask, use the ``raw`` logits within the mask."""
    masked = np.where(allowed, logits, -np.inf)
    return masked if masked.max() > -np.inf else np.where(allowed, raw, -np.inf)


def _draw(sampling: SamplingParams, logits: Logits, index: int) -> int:
    """Draw a token by the inverse CDF at a uniform random number that depends only on (seed, index)."""
    order = np.argsort(-logits, kind="stable")
    if sampling.temperature == 0:
        return int(order[0])
    scaled = logits[order] / max(sampling.temperature, 1e-6)
    probs = np.exp(scaled - scaled[0])
    probs /= probs.sum()
    keep = probs >= sampling.min_p * probs[0]
    keep &= np.cumsum(probs) - probs < sampling.top_p
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    keep[0] = True
    cumulative = np.cumsum(np.where(keep, probs, 0.0))
    drawn = np.searchsorted(cumulative, uniform(sampling.seed, index) * cumulative[-1], side="right")
    return int(order[min(int(drawn), int(keep.nonzero()[0][-1]))])


def _logprob(raw: Logits, token: int, num_top: int | None) -> TokenLogprob | None:
    return None if num_top is None else _token_logprob(_log_softmax(raw), token, num_top)


def _token_logprob(log_probs: Logits, token: int, num_top: int, rank: int | None = None) -> TokenLogprob:
    top = np.argsort(-log_probs, kind="stable")[:num_top]
    return TokenLogprob(float(log_probs[token]), top.tolist(), log_probs[top].tolist(), rank)


def _log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max()
    result: Logits = shifted - np.log(np.exp(shifted).sum())
    return result
