"""Assigns to plan items their results other than sampled tokens. Most steps have no such results."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebbtide.messages import TokenLogprob
from ebbtide.plan import ItemFailure, StepPlan, StepResult


@dataclass(slots=True)
class ItemExtras:
    """The results of one item other than its sampled tokens, see ``StepResult``. Absent results are empty or None."""

    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    embedding: bytes = b""
    failure: ItemFailure | None = None


NO_EXTRAS = ItemExtras()


def item_extras(plan: StepPlan, result: StepResult) -> dict[int, ItemExtras]:
    """Return item index → results other than sampled tokens. Items without such results are left out."""
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
