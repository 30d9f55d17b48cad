"""Holds the open traces, adds the scheduler's messages to them, and creates the spans when a trace is complete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context
from starlette.types import Scope

from ebbtide.messages import PhaseChanges, PressureEvent

from .choice_trace import Attributes, ChoiceTrace
from .request_trace import RequestTrace

LINGER_S = 5.0  # seconds after a response during which the scheduler's report of the end may still arrive


class Traces:
    """The open traces. All methods run on the event loop's thread.

    page_sizes: tokens per page of each pool, by its name.
    """

    def __init__(self, tracer: Tracer, page_sizes: Mapping[str, int]) -> None:
        self._tracer = tracer
        self._page_sizes = page_sizes
        self._by_rid: dict[str, RequestTrace] = {}
        self._lingering: dict[int, asyncio.TimerHandle] = {}  # by id of the trace

    def begin(self, scope: Scope, operation: str) -> RequestTrace:
        """Start the trace of an HTTP request. Its parent is the span that the request's headers name."""
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ebbtide",
            "http.request.method": scope["method"],
            "http.route": scope["path"].removeprefix(scope.get("root_path", "")),
            "url.path": scope["path"],
            "url.scheme": scope.get("scheme", "http"),
        }
        span = self._tracer.start_span(
            f"{scope['method']} {attributes['http.route']}",
            context=extract(_headers(scope)),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        return RequestTrace(span, operation, time.time_ns() - time.monotonic_ns(), self._register)

    def finish(self, trace: RequestTrace, code: str | None) -> None:
        """Record the end of a response, and create the spans as soon as the scheduler has reported all ends.

        code: see ``RequestTrace.finished``.
        """
        if not trace.span.is_recording():
            return
        trace.finished(time.monotonic(), code)
        if trace.is_complete:
            self._emit(trace)
        else:
            timer = asyncio.get_running_loop().call_later(LINGER_S, self._emit, trace)
            self._lingering[id(trace)] = timer

    def apply(self, message: PhaseChanges) -> None:
        """Add phase changes to the traces of their requests."""
        for change in message.changes:
            trace = self._by_rid.get(change.rid)
            if trace is None:
                continue
            trace.choices[change.rid].apply(change)
            if change.phase == "end" and trace.is_complete:
                self._emit(trace)

    def pressure(self, event: PressureEvent) -> None:
        """Add the attributes of retractions. Their phase changes must have been applied."""
        for victim in event.victims:
            trace = self._by_rid.get(victim.rid)
            if trace is not None:
                trace.choices[victim.rid].retracted(event, victim, self._page_sizes.get(event.pool, 1))

    def on_scheduler_death(self) -> None:
        """End all choices: no further change will be reported."""
        now = time.monotonic()
        for trace in dict.fromkeys(self._by_rid.values()):
            for choice in trace.choices.values():
                choice.end(now)
            if trace.is_complete:
                self._emit(trace)

    def emit_all(self) -> None:
        """Create the spans of the traces whose response has ended, because no further change will be reported."""
        for trace in dict.fromkeys(self._by_rid.values()):
            if trace.end_s is not None:
                self._emit(trace)

    def _register(self, trace: RequestTrace) -> None:
        self._by_rid |= dict.fromkeys(trace.choices, trace)

    def _emit(self, trace: RequestTrace) -> None:
        """Create the spans of the choices and end the span of the request."""
        timer = self._lingering.pop(id(trace), None)
        if timer is not None:
            timer.cancel()
        for rid in trace.choices:
            self._by_rid.pop(rid, None)
        end_s = trace.end_s if trace.end_s is not None else time.monotonic()
        spans = _SpanWriter(self._tracer, trace.wall_offset_ns)
        for choice in trace.choices.values():
            choice.end(end_s)  # only if the scheduler has not reported it
            spans.write_choice(choice, trace.span, has_own_span=len(trace.choices) > 1)
        trace.span.end(spans.unix_ns(end_s))


@dataclass(frozen=True, slots=True)
class _SpanWriter:
    """Creates spans whose times lie in the past. wall_offset_ns: see ``RequestTrace``."""

    tracer: Tracer
    wall_offset_ns: int

    def write_choice(self, choice: ChoiceTrace, parent: Span, *, has_own_span: bool) -> None:
        """Create the spans of the phases, below ``parent`` or below a span of the choice; add the events there."""
        span = parent
        if has_own_span:
            attributes: Attributes = {"ebbtide.choice.index": choice.index}
            span = self._start("choice", choice.phases[0].start_s, parent, attributes)
        for event in choice.events:
            span.add_event(event.name, event.attributes, timestamp=self.unix_ns(event.time_s))
        for phase in choice.phases:
            self._start(phase.name, phase.start_s, span, phase.attributes).end(self.unix_ns(phase.end_s))
        if has_own_span:
            span.end(self.unix_ns(choice.phases[-1].end_s))

    def unix_ns(self, monotonic_s: float) -> int:
        """Convert a time of the monotonic clock to Unix time in nanoseconds."""
        return self.wall_offset_ns + round(monotonic_s * 1e9)

    def _start(self, name: str, start_s: float, parent: Span, attributes: Attributes) -> Span:
        context = set_span_in_context(parent)
        return self.tracer.start_span(name, context, attributes=attributes, start_time=self.unix_ns(start_s))


def _headers(scope: Scope) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return headers
