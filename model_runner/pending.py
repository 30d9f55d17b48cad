"""Submitted steps, whose computation may still be in progress, and their conversion to results."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ebbtide.messages import TokenLogprob
from ebbtide.plan import ItemFailure, PlanItem, StepResult

from .isolation import Computed, item_failure
from .pooling import as_bytes
from .sampling.prompt_logprobs import PendingPromptLogprobs
from .sampling.sampler import INVALID_LOGITS, NO_TOKEN, PendingLogprobs
from .transfers import DeviceToHostCopy

INVALID = "the logits are nan or infinite, or leave no token to sample"


@dataclass(frozen=True, slots=True)
class PendingItems:
    """The results of items that were computed together.

    Attributes:
        tokens: one token per sampling item.
        logprobs: None if no row requested log-probabilities.
        prompt_logprobs: None if no item requested prompt log-probabilities.
        embeddings: float32 [n, hidden], one row per item with ``embeds``; None if there is no such item.
    """

    tokens: DeviceToHostCopy
    logprobs: PendingLogprobs | None
    prompt_logprobs: PendingPromptLogprobs | None
    embeddings: DeviceToHostCopy | None = None


@dataclass(slots=True)
class _ItemResult:
    """The result of one item."""

    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob]
    embedding: bytes = b""


@dataclass(slots=True)
class _Places:
    """The numbers of samples, prompt log-probability specs and embeddings of all items before the current item."""

    sample: int = 0
    target: int = 0
    embedding: int = 0

    def move_past(self, item: PlanItem) -> None:
        """Add the outputs of ``item``."""
        self.sample += bool(item.num_samples)
        self.target += item.prompt_logprobs is not None
        self.embedding += item.embeds


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A submitted plan.

    Attributes:
        parts: the items that were computed together, with their results.
        failures: the items that were not computed. ``wait`` adds those whose results cannot be read.
    """

    number: int
    items: list[PlanItem]
    parts: list[Computed[PendingItems]]
    failures: list[ItemFailure]

    def wait(self) -> StepResult:
        """Return the result of the plan. Blocks until it has been computed."""
        found: dict[int, _ItemResult] = {}
        failures = list(self.failures)
        for part in self.parts:
            failures += self._read(part, found)
        empty = _ItemResult([], None, [])
        results = [(item, found.get(number, empty)) for number, item in enumerate(self.items)]
        sampled = [result for item, result in results if item.num_samples]
        logprobs = [result.logprobs for result in sampled]
        return StepResult(
            self.number,
            [result.tokens for result in sampled],
            logprobs if any(entry is not None for entry in logprobs) else None,
            [result.prompt_logprobs for item, result in results if item.prompt_logprobs is not None],
            failures,
            [result.embedding for item, result in results if item.embeds],
        )

    def _read(self, part: Computed[PendingItems], found: dict[int, _ItemResult]) -> Iterable[ItemFailure]:
        """Add the results of the items of ``part`` to ``found``, and yield the failures of the other items."""
        tokens = part.value.tokens.wait().tolist()
        places = _Places()
        for number in part.numbers:
            item = self.items[number]
            try:
                result = _item_result(part.value, item, tokens, places)
            except Exception as error:
                yield item_failure(number, item, error)
            else:
                if result is None:
                    yield ItemFailure(number, INVALID, invalid_logits=True)
                else:
                    found[number] = result
            places.move_past(item)


def _item_result(pending: PendingItems, item: PlanItem, tokens: list[int], places: _Places) -> _ItemResult | None:
    """Return the result of ``item``, whose outputs are at ``places``; None if its logits or states are not finite."""
    result = _ItemResult([], None, [])
    if item.prompt_logprobs is not None and pending.prompt_logprobs is not None:
        result.prompt_logprobs = pending.prompt_logprobs.of(places.target)
        if any(math.isnan(entry.logprob) for entry in result.prompt_logprobs):
            return None
    if item.embeds and pending.embeddings is not None:
        vector = pending.embeddings.wait()[places.embedding]
        if not vector.isfinite().all():
            return None
        result.embedding = as_bytes(vector)
    if not item.num_samples:
        return result
    token = tokens[places.sample]
    if token == INVALID_LOGITS:
        return None
    result.tokens = [] if token == NO_TOKEN else [token]
    logprobs = None if pending.logprobs is None else pending.logprobs.of(places.sample)
    result.logprobs = None if logprobs is None else [logprobs]
    return result
