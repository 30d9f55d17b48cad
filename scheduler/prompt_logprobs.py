"""Requests the log-probabilities of prompt tokens from the runner, and sends the results.

The log-probability of a recomputed token is not requested again if it has already been sent.
"""

from __future__ import annotations

from ebbtide.messages import PromptLogprobs, TokenLogprob
from ebbtide.plan import PlanItem, PromptLogprobSpec

from .lifecycle import Lifecycle
from .outbox import Outbox
from .request import Request


def prompt_logprobs_for(req: Request, count: int) -> PromptLogprobSpec | None:
    """Return which log-probabilities to request with the item that computes the next ``count`` tokens of ``req``.

    Returns None if none are needed.

    The logits of a token give the log-probability of the token after it, up to the prompt's end.
    """
    num_top = req.sampling.prompt_logprobs
    if num_top is None:
        return None
    # num_prompt_logprobs_sent does not include chunks in flight, but ``computed`` does.
    first = max(req.computed + 1, req.num_prompt_logprobs_sent)
    last = min(req.computed + count, req.prompt_len - 1)
    if first > last:
        return None
    return PromptLogprobSpec(first - 1 - req.computed, req.known[first : last + 1], num_top)


def record_prompt_logprobs(
    req: Request, item: PlanItem, logprobs: list[TokenLogprob], outbox: Outbox, lifecycle: Lifecycle
) -> None:
    """Send the log-probabilities that ``item`` requested. Finish a request with ``max_tokens`` 0 after its prompt."""
    if item.prompt_logprobs is not None:
        outbox.emit_prompt_logprobs(req, PromptLogprobs(item.prompt_logprobs.targets, logprobs))
    if not req.sampling.max_tokens and item.end >= req.prompt_len:
        lifecycle.finish(req, "length")
