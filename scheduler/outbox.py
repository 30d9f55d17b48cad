"""Collects the messages of a step to the detokenizer and the front process. The module changes no request's phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ebbtide.messages import (
    AbortReq,
    Finish,
    PhaseChange,
    PressureEvent,
    PressureUsage,
    PromptLogprobs,
    Reply,
    StreamStart,
    TokenItem,
    TokenLogprob,
)

from .request import Request

PROMPT_TAIL = 8  # number of prompt tokens sent to the detokenizer: a character may begin in them and end in the output


@dataclass(slots=True)
class Output:
    """The messages of one step."""

    items: list[TokenItem] = field(default_factory=list)
    aborts: list[AbortReq] = field(default_factory=list)
    events: list[PressureEvent] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    phases: list[PhaseChange] = field(default_factory=list)


class Outbox:
    """Collects messages until ``drain`` is called."""

    def __init__(self) -> None:
        self.output = Output()

    def drain(self) -> Output:
        """Return the messages collected since the last call."""
        output, self.output = self.output, Output()
        return output

    def emit(self, req: Request, tokens: list[int], logprobs: list[TokenLogprob] | None) -> None:
        """Send output tokens of one step.

        logprobs: one entry per token; None if log-probabilities were not requested.

        The first item after a retraction already contains the pressure usage, because the detokenizer may find a stop
        string and end the request before its last item.
        """
        pressure = None
        if req.history.reported_retractions != req.history.retraction_count:
            req.history.reported_retractions = req.history.retraction_count
            pressure = pressure_usage(req)
        self.output.items.append(TokenItem(req.rid, tokens, _stream_start(req), logprobs=logprobs, pressure=pressure))

    def emit_prompt_logprobs(self, req: Request, logprobs: PromptLogprobs) -> None:
        """Send the log-probabilities of the next prompt tokens."""
        req.num_prompt_logprobs_sent += len(logprobs.tokens)
        self.output.items.append(TokenItem(req.rid, [], _stream_start(req), prompt=logprobs))

    def close(
        self,
        req: Request,
        reason: Finish,
        tokens: Sequence[int],
        logprobs: list[TokenLogprob] | None,
        embedding: bytes = b"",
    ) -> None:
        """Send the last item of a finished request: the output that has not been sent yet, and the finish reason.

        The detokenizer then removes the request's stream.
        """
        self.output.items.append(
            TokenItem(
                req.rid,
                list(tokens),
                _stream_start(req),
                finish=reason,
                stop_token=tokens[-1] if tokens and reason == "stop" else None,
                logprobs=logprobs,
                pressure=pressure_usage(req),
                embedding=embedding,
            )
        )

    def close_aborted(self, req: Request, abort: AbortReq, *, tell_front: bool) -> None:
        """Make the detokenizer remove the stream of an aborted request.

        tell_front: True to send ``abort`` to the front process, too.
        """
        self.output.items.append(TokenItem(req.rid, [], finish="abort", pressure=pressure_usage(req)))
        if tell_front:
            self.output.aborts.append(abort)


def pressure_usage(req: Request) -> PressureUsage | None:
    """Return the cost of the request's retractions so far; None if the request was never retracted."""
    history = req.history
    if not history.retracted_stain:
        return None
    return PressureUsage(history.retraction_count, history.recomputed_tokens, round(history.queue_s * 1000))


def _stream_start(req: Request) -> StreamStart | None:
    if req.started:
        return None
    req.started = True
    tail = req.known[max(req.prompt_len - PROMPT_TAIL, 0) : req.prompt_len]
    return StreamStart(req.text, tail, req.history.cached_tokens, req.prompt_len)
