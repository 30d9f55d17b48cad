"""Splits the result of a step into the results of its items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from ebbtide.messages import TokenLogprob
from ebbtide.plan import ItemFailure, StepPlan, StepResult


@dataclass(slots=True)
class ItemResult:
    """The result of one item. See ``StepResult``. Fields that the item does not request are empty or None."""

    tokens: list[int]
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob]
    embedding: bytes
    failure: ItemFailure | None


def item_results(plan: StepPlan, result: StepResult) -> Iterator[ItemResult]:
    """Yield the results of the items of ``plan``, in order."""
    sampled = zip(result.tokens, result.logprobs or repeat(None), strict=False)
    prompt_logprobs, embeddings = iter(result.prompt_logprobs), iter(result.embeddings)
    failures = {failure.item: failure for failure in result.failures}
    for number, item in enumerate(plan.items):
        tokens, logprobs = next(sampled) if item.num_samples else ([], None)
        found = next(prompt_logprobs) if item.prompt_logprobs is not None else []
        yield ItemResult(tokens, logprobs, found, next(embeddings) if item.embeds else b"", failures.get(number))
