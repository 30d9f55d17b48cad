"""Applies the result of one item of a step to its request: computed K/V, output tokens, the end of the request."""

from __future__ import annotations

from ebbtide.errors import GrammarError
from ebbtide.messages import TokenLogprob
from ebbtide.plan import PlanItem

from .grammar.grammar_state import grammar_abort
from .item_extras import ItemExtras
from .prompt_logprobs import record_prompt_logprobs
from .request import Request
from .state import State


class ItemResults:
    """Applies results. context_length: maximum length of prompt and output, in tokens."""

    def __init__(self, state: State, context_length: int) -> None:
        self._state = state
        self._context_length = context_length

    def apply(
        self,
        req: Request,
        item: PlanItem,
        tokens: list[int],
        logprobs: list[TokenLogprob] | None,
        extra: ItemExtras,
    ) -> None:
        """Apply the result of one item of ``req``.

        tokens, logprobs: the sampled tokens, empty if the item samples none, and their logprobs if they were requested.
        Raises InvariantViolation if the accounting is inconsistent.
        """
        self._computed(req, item, len(tokens))
        if item.embeds:
            self._state.lifecycle.finish(req, "stop", embedding=extra.embedding)
        elif item.prompt_logprobs is not None or not req.sampling.max_tokens:
            record_prompt_logprobs(req, item, extra.prompt_logprobs, self._state.outbox, self._state.lifecycle)
        if item.num_samples:
            self._sampled(req, tokens, logprobs)

    def _computed(self, req: Request, item: PlanItem, num_sampled: int) -> None:
        """Record that the K/V of the item's tokens, and of all sampled tokens except the last, is computed.

        Publishes full prompt pages. Queues the other choices of the request when the prompt is complete.
        """
        req.num_confirmed = item.end
        if num_sampled > 1:
            req.num_confirmed += num_sampled - 1
            req.computed += num_sampled - 1
        if req.num_shared < req.prompt_len // req.page_size:
            self._state.pool.publish(req, min(req.num_confirmed, req.prompt_len))
        if self._state.more_pools and item.start // req.page_size < req.num_confirmed // req.page_size:
            for pool in self._state.more_pools:
                pool.settled(req)
        if req.sibling_choices and req.num_confirmed >= req.prompt_len:
            self._state.lifecycle.queue_siblings(req)

    def _sampled(self, req: Request, tokens: list[int], logprobs: list[TokenLogprob] | None) -> None:
        """Apply the output tokens of one item. Tokens after the token that ends the request are dropped."""
        req.samples_in_flight -= 1
        lifecycle = self._state.lifecycle
        for count, token in enumerate(tokens, 1):
            complete = False
            if req.grammar:
                try:
                    complete = self._state.grammars.advance(req, token)
                except GrammarError as error:
                    self._grammar_failed(req, tokens[: count - 1], logprobs, str(error))
                    return
            req.append(token)
            self._state.metrics.sampled(req)
            num_outputs = len(req.known) - req.prompt_len
            if token in req.stop_ids and num_outputs > req.sampling.min_tokens:
                lifecycle.finish(req, "stop", tokens=tokens[:count], logprobs=logprobs and logprobs[:count])
                return
            if complete:
                self._state.outbox.emit(req, tokens[:count], logprobs and logprobs[:count])
                lifecycle.finish(req, "stop")  # a separate message, because this token's text belongs to the output
                return
            if num_outputs >= req.sampling.max_tokens or len(req.known) >= self._context_length:
                lifecycle.finish(req, "length", tokens=tokens[:count], logprobs=logprobs and logprobs[:count])
                return
        if tokens:
            self._state.outbox.emit(req, tokens, logprobs)
        else:
            self._grammar_failed(req, tokens, None, "The grammar allows no token here.")

    def _grammar_failed(
        self, req: Request, tokens: list[int], logprobs: list[TokenLogprob] | None, problem: str
    ) -> None:
        """Emit ``tokens``, which match the grammar, and abort the request."""
        if tokens:
            self._state.outbox.emit(req, tokens, logprobs and logprobs[: len(tokens)])
        self._state.lifecycle.abort(req, grammar_abort(req, problem), tell_front=True)
