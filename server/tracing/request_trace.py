"""The trace of one HTTP request: its span, the traces of its choices, and the attributes that describe it.

The names of attributes follow OpenTelemetry's conventions for generative AI and HTTP. Text of prompts and outputs is
never recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from opentelemetry.trace import Span, Status, StatusCode

from ebbtide.messages import SamplingParams
from ebbtide.tokenizer_mgr.prepared_request import Prepared, PreparedRequest
from ebbtide.tokenizer_mgr.response_stream import ResponseStream

from .choice_trace import Attributes, ChoiceTrace

MAX_CHOICES = 64  # number of choices of a request that get spans of their own
CLIENT_LEFT = "client_disconnected"


class RequestTrace:
    """A traced request.

    Attributes:
        span: the span of the request; it starts when this object is created.
        operation: value of ``gen_ai.operation.name``.
        http_status: status of the response; 0 if none was sent.
        requested_model: the model that the request names.
        choices: the traces of the choices that the scheduler runs, by rid.
        end_s: time at which the response ended, on the system's monotonic clock; None before.
        wall_offset_ns: Unix time minus the time of the monotonic clock, at the start of the request.
    """

    def __init__(
        self, span: Span, operation: str, wall_offset_ns: int, on_submission: Callable[[RequestTrace], None]
    ) -> None:
        """on_submission: called when ``choices`` is set, if the trace is sampled."""
        self.span = span
        self.operation = operation
        self.wall_offset_ns = wall_offset_ns
        self.http_status = 0
        self.requested_model: str | None = None
        self.choices: dict[str, ChoiceTrace] = {}
        self.end_s: float | None = None
        self._on_submission = on_submission
        self._stream: ResponseStream | None = None

    @property
    def is_complete(self) -> bool:
        """True if the end of the response and of every choice is known."""
        return self.end_s is not None and all(choice.ended for choice in self.choices.values())

    def submitted(self, stream: ResponseStream, prepared: Prepared, model: str) -> None:
        """Record the request that was sent to the engine. model: the name of the model that answers it."""
        if not self.span.is_recording():
            return
        self._stream = stream
        wanted = self.requested_model or model
        attributes: Attributes = {"gen_ai.request.model": wanted, "gen_ai.response.model": model}
        attributes["gen_ai.response.id"] = stream.client_id or stream.rids[0]
        if isinstance(prepared, PreparedRequest):
            attributes |= _parameters(prepared)
            numbered = enumerate(stream.rids[:MAX_CHOICES])
            self.choices = {rid: ChoiceTrace(index, stream.sent_s) for index, rid in numbered}
        self.span.update_name(f"{self.operation} {wanted}")
        self.span.set_attributes(attributes)
        self._on_submission(self)

    def finished(self, end_s: float, code: str | None) -> None:
        """Record the end of the response. code: the code of the error with which the request was refused."""
        self.end_s = end_s
        stream = self._stream
        if stream is not None:
            self._add_totals(stream)
            for choice in self.choices.values():
                if stream.error is not None and not choice.has_run:
                    choice.end(end_s)  # the scheduler reports no phases of a request that it refuses
        self._set_status(code)

    def _add_totals(self, stream: ResponseStream) -> None:
        facts = stream.facts
        attributes: Attributes = {
            "gen_ai.usage.input_tokens": sum(facts.prompt_tokens.values()),
            "gen_ai.usage.output_tokens": sum(facts.output_tokens.values()),
            "gen_ai.usage.cache_read.input_tokens": sum(facts.cached_tokens.values()),
            "ebbtide.num_retractions": sum(facts.retractions.values()),
        }
        if facts.first_token_s is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = round(facts.first_token_s - stream.received_s, 6)
        self.span.set_attributes(attributes)
        if facts.finishes:
            reasons = [facts.finishes[index] for index in sorted(facts.finishes)]
            self.span.set_attribute("gen_ai.response.finish_reasons", reasons)

    def _set_status(self, code: str | None) -> None:
        span, stream, status = self.span, self._stream, self.http_status
        if status:
            span.set_attribute("http.response.status_code", status)
        failure = None if stream is None else stream.error
        if failure is not None:
            code, is_error = failure.code, failure.status >= HTTPStatus.INTERNAL_SERVER_ERROR or status < 400
            code = code or str(failure.status)
        elif status == 0 or (stream is not None and not stream.has_outcome):
            code, is_error = CLIENT_LEFT, True
        elif status >= HTTPStatus.BAD_REQUEST:
            code, is_error = code or str(status), status >= HTTPStatus.INTERNAL_SERVER_ERROR
        else:
            return
        span.set_attribute("error.type", code)
        if is_error:
            span.set_status(Status(StatusCode.ERROR, code))


def _parameters(prepared: PreparedRequest) -> Attributes:
    """Return the attributes of the request's parameters: those of its first prompt."""
    sampling: SamplingParams = prepared.sampling[0]
    attributes: Attributes = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.choice.count": prepared.n,
        "ebbtide.request.prompts": len(prepared.prompts),
        "ebbtide.request.priority": prepared.priority,
    }
    optional = {
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    if prepared.session is not None:
        attributes["gen_ai.conversation.id"] = prepared.session.session_id
    return attributes
