"""Every open request between HTTP and the scheduler: ids, routing, and exactly one final outcome each.

Knows messages and answers; knows neither HTTP nor tokenizers. All methods run on the event loop's thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ebbtide.errors import Rejected
from ebbtide.messages import AbortReq, FinishReq, GenerateReq, TextBatch, TextItem, ToScheduler

from .client_ids import ClientIds, OpenRequest
from .prepared_request import PreparedRequest, Sender
from .preparing import PreparingRequest
from .response_stream import ResponseStream

log = logging.getLogger(__name__)

STATUS_KINDS = {  # OpenAI's error types
    404: "not_found_error",
    409: "conflict_error",
    410: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
NEVER_RETRIED = (409, 500, 504)  # the official clients repeat these unless they are told not to
LATE = "The request did not end in time, and the engine says nothing ('timeout' in the request, or --request-timeout)."
RECURRING = ("session_full",)  # codes that waiting does not help against
UNTRIED = (429, 503)

Refusal = Callable[[], Rejected | None]


def no_refusal() -> Rejected | None:
    """For an engine of which nothing is known."""
    return None


class Outbox(Protocol):
    """The way to the scheduler."""

    def send(self, message: ToScheduler) -> bool:
        """Queue a message without waiting; False when it was not taken."""


class Timings(Protocol):
    """Who wants to know how long things took, in seconds."""

    def first_token(self, seconds: float) -> None:
        """Once per HTTP request: from its arrival to its first output token."""

    def token_gap(self, seconds: float, count: int) -> None:
        """``count`` output tokens of one choice came, ``seconds`` apart on average."""

    def completed(self, seconds: float) -> None:
        """Once per HTTP request that ends well: from its arrival to its end."""


@dataclass(slots=True, eq=False)
class _Choice:
    """One request as the scheduler sees it.

    held: the scheduler gave it up, but its closing item is still on its way. closed: that item came first.
    """

    stream: ResponseStream
    index: int
    last_token_s: float | None = None
    held: AbortReq | None = None
    closed: bool = False


class TokenizerManager:
    """Requests by rid. Choices and prompts of one HTTP request share an ResponseStream: they live and die together.

    refusal: why the engine would take nothing.
    """

    def __init__(
        self, outbox: Outbox, timings: Timings, clock: Callable[[], float], refusal: Refusal = no_refusal
    ) -> None:
        self._outbox = outbox
        self._refusal = refusal
        self._timings = timings
        self.clock = clock
        self._choices: dict[str, _Choice] = {}
        self._streams: dict[int, ResponseStream] = {}
        self._client_ids = ClientIds()

    @property
    def num_open(self) -> int:
        """HTTP requests that are not fully answered yet."""
        return len(self._streams)

    @property
    def num_choices(self) -> int:
        """Generations that the engine still works on, as far as is known here."""
        return len(self._choices)

    @contextmanager
    def register(self, sender: Sender) -> Iterator[None]:
        """Within the block a request is being prepared, and an abort finds it by its ids.

        Raises the error of the abort when the block ends.
        """
        preparing = PreparingRequest(sender.owner)
        self._client_ids.add(preparing, sender.ids)
        try:
            yield
        finally:
            self._client_ids.remove(preparing)
        preparing.check()

    def num_open_of(self, owner: str) -> int:
        """HTTP requests of an owner's that have come and are not fully answered yet."""
        return self._client_ids.count(owner)

    def submit(self, prepared: PreparedRequest, sender: Sender, *, received_s: float) -> ResponseStream:
        """Send every prompt to the scheduler. Enter the answer at once: leaving it early aborts the rest.

        Raises Rejected, with nothing left running, when the scheduler does not take its messages.
        """
        stem = secrets.token_hex(10)  # ours, so two requests of one client id never meet
        rids = [f"{stem}-{index}" for index in range(prepared.num_choices)]
        stream = ResponseStream(rids, received_s, self._close, sender.owner)
        if sender.timeout_s is not None:
            stream.deadline_s = received_s + sender.timeout_s
        self._streams[id(stream)] = stream
        self._client_ids.add(stream, (*sender.ids, *rids))
        for index, rid in enumerate(rids):
            self._choices[rid] = _Choice(stream, index)
        spent_s = self.clock() - received_s
        for prompt_index, prompt in enumerate(prepared.prompts):
            mine = rids[prompt_index * prepared.n : (prompt_index + 1) * prepared.n]
            request = GenerateReq(
                rids=tuple(mine),
                prompt=prompt,
                sampling=prepared.sampling[prompt_index],
                text=prepared.text,
                priority=sender.priority(prepared.priority),
                namespace=sender.namespace(prepared.namespace),
                session=sender.session(prepared.session),
                grammar=prepared.grammar,
                queue_timeout_s=_left(sender.queue_timeout_s, spent_s),
                timeout_s=_left(sender.timeout_s, spent_s),
                num_before=prompt_index * prepared.n,
            )
            if not self._outbox.send(request):
                self._close(stream)
                raise send_error(self._refusal())
        return stream

    def handle(self, message: TextBatch | AbortReq) -> None:
        """A message from the detokenizer or the scheduler. One about an ended or unknown request changes nothing."""
        match message:
            case TextBatch(items=items):
                for item in items:
                    self._take_text(item)
            case AbortReq():
                self._take_abort(message)

    def abort(self, name: str | None, error: Rejected, *, owner: str | None) -> int:
        """End every open request that its client, or the engine, knows as ``name``; None ends all. How many there were.

        owner: only this owner's; None: anybody's. The readers get ``error`` after the text that came before it.
        """
        found = self._client_ids.every() if name is None else self._client_ids.find(name)
        ended = [request for request in found if not request.has_outcome and owner in (None, request.owner)]
        for request in ended:
            request.fail(error)
            self._abandon(request, reason="aborted")
        return len(ended)

    def expire_late(self) -> None:
        """The engine says nothing: end what has run out of time, since nobody else can."""
        now = self.clock()
        late = [stream for stream in self._streams.values() if stream.deadline_s < now and not stream.has_outcome]
        for stream in late:
            stream.fail(Rejected(LATE, status=504, kind=error_kind(504), code="timeout", should_retry=False))
            self._abandon(stream, reason="timeout")

    def fail_all(self, error: Rejected) -> None:
        """Every request whose outcome is open ends with ``error`` now; nothing more is waited for."""
        for stream in list(self._streams.values()):
            stream.fail(error)
            self._abandon(stream, reason="shutdown")

    def _take_text(self, item: TextItem) -> None:
        choice = self._choices.get(item.rid)
        if choice is None:
            return  # ended already: a stop string, the client left, a sibling failed
        if item.tokens:
            self._time_tokens(choice, len(item.tokens))
        if item.finish == "abort":
            self._closing_item(choice, item)
            return
        if item.finish is not None:
            del self._choices[item.rid]
        if item.finish is not None and isinstance(item.matched, str):
            # The scheduler does not know of the stop string; it must, before the client can send its next request.
            self._send(FinishReq(item.rid, item.num_output_tokens, item.num_shown_tokens))
        if choice.stream.add(choice.index, item):
            self._timings.completed(self.clock() - choice.stream.received_s)

    def _closing_item(self, choice: _Choice, item: TextItem) -> None:
        choice.stream.add(choice.index, item)
        choice.closed = True
        if choice.held is not None:
            self._give_up(choice, choice.held)

    def _take_abort(self, abort: AbortReq) -> None:
        choice = self._choices.get(abort.rid)
        if choice is None:
            log.debug("an abort came for request %s, which has ended", abort.rid, extra={"rid": abort.rid})
        elif abort.num_output_tokens == 0 or choice.closed:
            self._give_up(choice, abort)
        else:
            choice.held = abort

    def _give_up(self, choice: _Choice, abort: AbortReq) -> None:
        self._choices.pop(abort.rid, None)
        choice.stream.fail(_as_error(abort))
        # The detokenizer gives up on requests that the scheduler still runs; one that it knows no more it ignores.
        self._send(AbortReq(abort.rid, abort.reason))
        self._abandon(choice.stream, reason="sibling")

    def _close(self, stream: ResponseStream) -> None:
        self._streams.pop(id(stream), None)
        self._client_ids.remove(stream)
        self._abandon(stream, reason="client")

    def _abandon(self, request: OpenRequest, *, reason: str) -> None:
        for rid in request.rids:
            if self._choices.pop(rid, None) is not None:
                self._send(AbortReq(rid, reason))

    def _time_tokens(self, choice: _Choice, count: int) -> None:
        now = self.clock()
        if not choice.stream.had_token:
            choice.stream.had_token = True
            self._timings.first_token(now - choice.stream.received_s)
        if choice.last_token_s is not None:
            self._timings.token_gap((now - choice.last_token_s) / count, count)
        choice.last_token_s = now

    def _send(self, message: ToScheduler) -> None:
        if not self._outbox.send(message):
            log.error("the scheduler does not take messages; %s was dropped", type(message).__name__)


def send_error(refusal: Rejected | None) -> Rejected:
    """The error when the scheduler did not take a message: the reason that is known for it, if there is one."""
    return refusal or Rejected(
        "The scheduler does not take new work.",
        status=503,
        kind="overloaded_error",
        code="engine_silent",
        retry_after_s=5,
    )


def error_kind(status: int) -> str:
    """The ``type`` of OpenAI's error object for an HTTP status."""
    return STATUS_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _left(limit_s: float | None, spent_s: float) -> float | None:
    return None if limit_s is None else max(limit_s - spent_s, 0.0)


def _as_error(abort: AbortReq) -> Rejected:
    """The scheduler's verdict as the client's answer. What would recur, the official clients are told not to retry."""
    status = abort.status or 500
    recurs = status in NEVER_RETRIED or abort.code in RECURRING
    soon_s = 1.0 if status in UNTRIED and not recurs else None
    return Rejected(
        abort.message or f"The request was aborted: {abort.reason}.",
        status=status,
        kind=error_kind(status),
        code=abort.code or abort.reason,
        retry_after_s=soon_s if abort.retry_after_s is None else abort.retry_after_s,
        should_retry=False if recurs else None,
    )
