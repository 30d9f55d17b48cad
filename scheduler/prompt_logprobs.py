"""Log-probabilities of prompt tokens: requests them from a step and sends the result.

The log-probability of a token is requested until it was sent, and not again if the token is recomputed.
"""

from __future__ import annotations

from ebbtide.messages import PromptLogprobs, TokenLogprob
from ebbtide.plan import PlanItem, PromptLogprobSpec

from .lifecycle import Lifecycle
from .outbox import Outbox
from .request import Request


def prompt_logprobs_for(req: Request, count: int) -> PromptLogprobSpec | None:
    """The request for the item that computes the next ``count`` tokens of ``req``. Returns None if none is needed.

    The logits of a token give the log-probability of the token after it, up to the prompt's end.
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


def record_prompt_logprobs(
    req: Request, item: PlanItem, logprobs: list[TokenLogprob], outbox: Outbox, lifecycle: Lifecycle
) -> None:
    """Send what ``item`` asked for. A request with ``max_tokens`` 0 ends with its prompt."""
    if item.prompt_logprobs is not None:
        outbox.emit_prompt_logprobs(req, PromptLogprobs(item.prompt_logprobs.targets, logprobs))
    if not req.sampling.max_tokens and item.end >= req.prompt_len:
        lifecycle.finish(req, "length")
