"""Every way a request ends, and its tokens until then: it ends exactly once and closes its detokenizer entry."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from ebbtide.messages import AbortReq, Finish, PressureUsage, PromptLogprobs, StreamStart, TokenItem, TokenLogprob

from .pressure import Pressure, Why
from .request import Phase, Request
from .state import State

PROMPT_TAIL = 8  # prompt tokens that the detokenizer sees, for a character that straddles the boundary


@dataclass(frozen=True, slots=True)
class FINISH_ABORT:
    """The end of the last request, when not even it fits: an answer, not a crash."""

    message: str
    status_code: int = HTTPStatus.INTERNAL_SERVER_ERROR.value
    reason: str = "kv_cache_exhausted"


class Endings:
    """Ends requests wherever they are: running, in flight, waiting, retracted, or held behind their first choice."""

    def __init__(self, state: State, pressure: Pressure) -> None:
        self._state = state
        self._pressure = pressure

    def emit(self, req: Request, token: int, logprob: TokenLogprob | None) -> None:
        """Hand out one output token; the first after a retraction says what that has cost so far.

        Not only the last item does: when a stop string ends the request, the detokenizer decides which item was last.
        """
        logprobs = None if logprob is None else [logprob]
        pressure = None
        if req.history.reported_retractions != req.history.retraction_count:
            req.history.reported_retractions = req.history.retraction_count
            pressure = self._pressure_usage(req)
        item = TokenItem(req.rid, [token], self._start(req), logprobs=logprobs, pressure=pressure)
        self._state.output.items.append(item)

    def emit_prompt_logprobs(self, req: Request, logprobs: PromptLogprobs) -> None:
        """Hand out log-probabilities of the next prompt tokens."""
        req.num_prompt_logprobs_sent += len(logprobs.tokens)
        self._state.output.items.append(TokenItem(req.rid, [], self._start(req), prompt=logprobs))

    def finish(
        self, req: Request, reason: Finish, *, token: int | None = None, logprob: TokenLogprob | None = None
    ) -> None:
        """A normal end, with its last token unless a stop string decided afterwards. Publishes what was computed."""
        self._close(req, Why.FINISH, reason)
        state = self._state
        state.lengths.add(req.num_outputs)
        item = TokenItem(
            req.rid,
            [] if token is None else [token],
            self._start(req),
            finish=reason,
            stop_token=token if reason == "stop" else None,
            logprobs=None if logprob is None else [logprob],
            pressure=self._pressure_usage(req),
        )
        state.output.items.append(item)

    def stop_at(self, req: Request, num_outputs: int) -> None:
        """A stop string ended it: outputs past ``num_outputs`` never happened."""
        kept = req.prompt_len + num_outputs
        del req.known[kept:]
        self.finish(req, "stop")

    def abort(self, req: Request, why: AbortReq, *, tell_front: bool) -> None:
        """An early end. ``tell_front`` is False when the front asked for it."""
        self._close(req, Why.ABORT, why.reason)
        self._state.output.items.append(TokenItem(req.rid, [], finish="abort", pressure=self._pressure_usage(req)))
        if tell_front:
            self._state.output.aborts.append(why)

    def exhausted(self, req: Request) -> None:
        """It does not fit even alone, after every token that fits."""
        pool = self._state.pool
        capacity = pool.capacity * pool.page_size
        message = (
            f"The KV cache is exhausted: the request has {len(req.known)} tokens (prompt {req.prompt_len}, output "
            f"{req.num_outputs}) and the pool holds {capacity}, even with nothing else in it. Ask for fewer tokens or "
            f"start the server with a larger --max-total-tokens."
        )
        end = FINISH_ABORT(message)
        abort = AbortReq(req.rid, end.reason, end.status_code, end.reason, end.message, req.num_outputs)
        self.abort(req, abort, tell_front=True)

    def broke_grammar(self, req: Request, why: str) -> None:
        """Its answer cannot go on as its grammar demands, and must not go on otherwise."""
        message = f"The answer cannot be continued within its grammar: {why}"
        abort = AbortReq(req.rid, "grammar_failed", 500, "grammar_failed", message, req.num_outputs)
        self.abort(req, abort, tell_front=True)

    def queue_siblings(self, req: Request) -> None:
        """The other choices of its prompt need not wait for it any longer."""
        for sibling in req.sibling_choices:
            if sibling.phase is Phase.WAITING:
                self._state.add_request_to_queue(sibling, is_retracted=True)
        req.sibling_choices = []

    def _close(self, req: Request, why: Why, reason: str) -> None:
        state = self._state
        if req.phase is Phase.RUNNING:
            self._pressure.release_req(req, why)
        elif req in state.waiting:
            state.waiting.remove(req, state.queue_class(req))
        if state.host_tier is not None:
            state.host_tier.discard(req)
        if req.is_retracted:
            state.num_retracted -= 1
        state.grammars.forget(req)
        del state.requests[req.rid]
        state.metrics.ended(req, reason, aborted=why is Why.ABORT)
        req.move_to(Phase.FINISHED)
        for listener in state.end_listeners:
            listener.ended(req, finished=why is Why.FINISH)
        self.queue_siblings(req)

    def _start(self, req: Request) -> StreamStart | None:
        if req.started:
            return None
        req.started = True
        tail = req.known[max(req.prompt_len - PROMPT_TAIL, 0) : req.prompt_len]
        return StreamStart(req.text, tail, req.history.cached_tokens, req.prompt_len)

    def _pressure_usage(self, req: Request) -> PressureUsage | None:
        history = req.history
        if not history.retracted_stain:
            return None
        return PressureUsage(history.retraction_count, history.recomputed_tokens, round(history.queue_s * 1000))
