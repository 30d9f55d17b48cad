"""Log-probabilities of prompt tokens: what a step is asked for, and what becomes of the answer.

A token is asked for until its value has gone out, and then no more, whatever is computed again.
"""

from __future__ import annotations

from ebbtide.messages import PromptLogprobs, TokenLogprob
from ebbtide.plan import PlanItem, PromptLogprobSpec

from .endings import Endings
from .request import Request


def prompt_logprobs_for(req: Request, count: int) -> PromptLogprobSpec | None:
    """What to ask of the item that computes the next ``count`` tokens of ``req``; None when there is nothing to ask.

    The logits of a token tell of the one that follows it, up to the prompt's end.
    """
    num_top = req.sampling.prompt_logprobs
    if num_top is None:
        return None
    # A chunk in flight is not counted in num_prompt_logprobs_sent, but it lies before ``computed``.
    first = max(req.computed + 1, req.num_prompt_logprobs_sent)
    last = min(req.computed + count, req.prompt_len - 1)
    if first > last:
        return None
    return PromptLogprobSpec(first - 1 - req.computed, req.known[first : last + 1], num_top)


def record_prompt_logprobs(req: Request, item: PlanItem, logprobs: list[TokenLogprob], endings: Endings) -> None:
    """Hand out what came back for ``item``; a request that wants nothing else ends with its prompt."""
    if item.prompt_logprobs is not None:
        endings.emit_prompt_logprobs(req, PromptLogprobs(item.prompt_logprobs.targets, logprobs))
    if not req.sampling.max_tokens and item.end >= req.prompt_len:
        endings.finish(req, "length")
