"""Log-probabilities of prompt tokens: what a step is asked for, and what becomes of the answer.

A token is asked for until its value has gone out, and then no more, whatever is computed again.
"""

from __future__ import annotations

from ebbtide.messages import PromptScores, TokenLogprob
from ebbtide.plan import PlanItem, Scoring

from .endings import Endings
from .request import Request


def scoring_of(req: Request, count: int) -> Scoring | None:
    """What to ask of the item that computes the next ``count`` tokens of ``req``; None when there is nothing to ask.

    The logits of a token tell of the one that follows it, up to the prompt's end.
    """
    num_top = req.sampling.prompt_logprobs
    if num_top is None:
        return None
    # A chunk in flight is not counted in num_scored, but it lies before ``computed``.
    first = max(req.computed + 1, req.num_scored)
    last = min(req.computed + count, req.prompt_len - 1)
    if first > last:
        return None
    return Scoring(first - 1 - req.computed, req.known[first : last + 1], num_top)


def book_scores(req: Request, item: PlanItem, scores: list[TokenLogprob], endings: Endings) -> None:
    """Hand out what came back for ``item``; a request that wants nothing else ends with its prompt."""
    if item.scoring is not None:
        endings.emit_scores(req, PromptScores(item.scoring.targets, scores))
    if not req.sampling.max_tokens and item.end >= req.prompt_len:
        endings.finish(req, "length")
