"""Finds the results of items besides their sampled tokens. Most steps have none."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbtide.messages import TokenLogprob
from ebbtide.plan import ItemFailure, StepPlan, StepResult


@dataclass(slots=True)
class ItemExtras:
    """The results of one item besides its samples. See ``StepResult``. Absent results are empty or None."""

    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    embedding: bytes = b""
    failure: ItemFailure | None = None


NO_EXTRAS = ItemExtras()


def item_extras(plan: StepPlan, result: StepResult) -> dict[int, ItemExtras]:
    """Return the extras by index of the item, for the items that have some."""
    if not (result.prompt_logprobs or result.embeddings or result.failures):
        return {}
    prompt_logprobs, embeddings = iter(result.prompt_logprobs), iter(result.embeddings)
    extras = {failure.item: ItemExtras(failure=failure) for failure in result.failures}
    for number, item in enumerate(plan.items):
        if item.prompt_logprobs is not None:
            extras.setdefault(number, ItemExtras()).prompt_logprobs = next(prompt_logprobs)
        if item.embeds:
            extras.setdefault(number, ItemExtras()).embedding = next(embeddings)
    return extras
