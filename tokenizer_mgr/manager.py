"""Tracks the open requests: their ids, the routing of their output, and exactly one outcome for each.

The module does not depend on HTTP or tokenizers. All methods run on the event loop's thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from ebbtide.errors import Rejected
from ebbtide.messages import AbortReq, EncodedBatch, EncodedItem, FinishReq, GenerateReq, TextBatch, TextItem, ToEngine

from .client_ids import ClientIds, OpenRequest
from .engine_errors import abort_error, error_kind, send_error
from .prepared_request import Prepared, Sender
from .preparing import PreparingRequest
from .request_log import RequestLog
from .response_stream import ResponseStream

log = logging.getLogger(__name__)

LATE = "The request timed out while the engine did not respond ('timeout' in the request, or --request-timeout)."

Refusal = Callable[[], Rejected | None]


def no_refusal() -> Rejected | None:
    """Return None: the engine always accepts work."""
    return None


class Outbox(Protocol):
    """Sends messages to the engine."""

    def send(self, message: ToEngine) -> bool:
        """Queue a message without blocking. Returns False if the queue is full."""


class Timings(Protocol):
    """Receives latencies in seconds."""

    def observe_first_token(self, seconds: float) -> None:
        """Record the time from a request's arrival to its first output token. Called once per HTTP request."""

    def observe_token_gap(self, seconds: float, count: int) -> None:
        """Record that ``count`` output tokens of one choice arrived, with an average interval of ``seconds``."""

    def observe_completion(self, seconds: float) -> None:
        """Record the time from a request's arrival to its end, for a request that succeeds."""


@dataclass(slots=True, eq=False)
class _Choice:
    """One choice. The scheduler handles each choice as a separate request.

    Attributes:
        held: an abort from the engine, held back until the closing item (with finish "abort") arrives
        closed: True once the closing item has arrived
    """

    stream: ResponseStream
    index: int
    last_token_s: float | None = None
    held: AbortReq | None = None
    closed: bool = False


class TokenizerManager:
    """Holds the open choices by rid. All choices of one HTTP request share a ResponseStream.

    refusal: returns the error with which new work is refused, or None if the engine accepts work.
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
        self._num_sent = 0
        self.request_log: RequestLog | None = None  # set once, before the first request
        self.keeps_facts = False  # True to fill ``ResponseStream.facts``; set once, before the first request

    @property
    def num_open(self) -> int:
        """Number of HTTP requests whose response is not complete."""
        return len(self._streams)

    @property
    def num_choices(self) -> int:
        """Number of choices that have not ended."""
        return len(self._choices)

    def take_num_sent(self) -> int:
        """Return the number of choices sent to the scheduler since the last call."""
        count, self._num_sent = self._num_sent, 0
        return count

    @contextmanager
    def register(self, sender: Sender) -> Iterator[None]:
        """Register a request that is being prepared: while the block runs, an abort finds the request by its ids.

        When the block ends, raises the abort's error if the request was aborted.
        """
        preparing = PreparingRequest(sender.owner)
        try:
            self._client_ids.add(preparing, sender.ids)
            yield
        finally:
            self._client_ids.remove(preparing)
        preparing.check()

    def num_open_of(self, owner: str) -> int:
        """Return the number of HTTP requests of ``owner`` that are being prepared or whose response is not complete."""
        return self._client_ids.count(owner)

    def owners_of(self, rids: Iterable[str]) -> dict[str, str]:
        """Return rid → owner, without the rids that are not open."""
        return {rid: self._choices[rid].stream.owner for rid in rids if rid in self._choices}

    def submit(self, prepared: Prepared, sender: Sender, *, received_s: float) -> ResponseStream:
        """Send all messages of a request to the engine.

        The caller must enter the returned stream at once; leaving it early aborts the choices that are still running.

        Raises Rejected if a message cannot be queued. After any exception, the choices that were sent are aborted and
        the request is removed.
        """
        stem = secrets.token_hex(10)  # the client's id is not used, because it need not be unique
        rids = [f"{stem}-{index}" for index in range(prepared.num_choices)]
        stream = ResponseStream(rids, received_s, self._close, sender.owner)
        if sender.timeout_s is not None:
            stream.deadline_s = received_s + sender.timeout_s
        try:
            self._register(stream, sender.ids)
            stream.sent_s = self.clock()
            self._send_all(prepared, sender, rids, stream.sent_s - received_s)
        except BaseException:
            self._close(stream)
            raise
        return stream

    def _register(self, stream: ResponseStream, ids: tuple[str, ...]) -> None:
        self._streams[id(stream)] = stream
        stream.client_id = ids[0] if ids else ""
        self._client_ids.add(stream, (*ids, *stream.rids))
        self._choices |= {rid: _Choice(stream, index) for index, rid in enumerate(stream.rids)}

    def _send_all(self, prepared: Prepared, sender: Sender, rids: list[str], spent_s: float) -> None:
        for message in prepared.messages(rids, sender, spent_s):
            if not self._outbox.send(message):
                raise send_error(self._refusal())
            if isinstance(message, GenerateReq):
                self._num_sent += len(message.rids)

    def handle(self, message: TextBatch | AbortReq | EncodedBatch) -> None:
        """Handle a message from a process of the engine. Ignores items of ended and unknown requests."""
        match message:
            case TextBatch(items=items):
                for item in items:
                    self._handle_item(item)
            case EncodedBatch(items=encoded):
                for one in encoded:
                    self._handle_item(_as_text_item(one))
            case AbortReq():
                self._handle_abort(message)

    def abort(self, name: str | None, error: Rejected, *, owner: str | None) -> int:
        """Abort all open requests with the id ``name``, or all open requests if ``name`` is None; return their number.

        Readers first get the remaining output, then ``error``.
        owner: abort only requests of this owner; None for all owners.
        """
        found = self._client_ids.every() if name is None else self._client_ids.find(name)
        ended = [request for request in found if not request.has_outcome and owner in (None, request.owner)]
        for request in ended:
            request.fail(error)
            self._abort_choices(request, reason="aborted")
        return len(ended)

    def expire_late(self) -> None:
        """End the requests whose deadline has passed.

        Needed only while the scheduler is not responding; otherwise the scheduler itself enforces the deadlines.
        """
        now = self.clock()
        late = [stream for stream in self._streams.values() if stream.deadline_s < now and not stream.has_outcome]
        for stream in late:
            stream.fail(Rejected(LATE, status=504, kind=error_kind(504), code="timeout", should_retry=False))
            self._abort_choices(stream, reason="timeout")

    def fail_all(self, error: Rejected) -> None:
        """Fail every unfinished request with ``error``."""
        for stream in list(self._streams.values()):
            stream.fail(error)
            self._abort_choices(stream, reason="shutdown")

    def _handle_item(self, item: TextItem) -> None:
        choice = self._choices.get(item.rid)
        if choice is None:
            return  # the request has already ended: by a stop string, a disconnect, or the failure of another choice
        if item.tokens:
            self._time_tokens(choice, len(item.tokens))
        if self.keeps_facts:
            choice.stream.facts.add(choice.index, item)
        if item.finish == "abort":
            self._handle_closing_item(choice, item)
            return
        if item.finish is not None:
            del self._choices[item.rid]
        if item.finish is not None and isinstance(item.matched, str):
            # Tell the scheduler about the stop string before the client can send its next request.
            self._send(FinishReq(item.rid, item.num_output_tokens, item.num_shown_tokens))
        if choice.stream.add(choice.index, item):
            self._timings.observe_completion(self.clock() - choice.stream.received_s)

    def _handle_closing_item(self, choice: _Choice, item: TextItem) -> None:
        choice.stream.add(choice.index, item)
        choice.closed = True
        if choice.held is not None:
            self._fail(choice, choice.held)

    def _handle_abort(self, abort: AbortReq) -> None:
        choice = self._choices.get(abort.rid)
        if choice is None:
            log.debug("received an abort for request %s, which has already ended", abort.rid, extra={"rid": abort.rid})
        elif abort.num_output_tokens == 0 or choice.closed:
            self._fail(choice, abort)
        else:
            choice.held = abort

    def _fail(self, choice: _Choice, abort: AbortReq) -> None:
        self._choices.pop(abort.rid, None)
        choice.stream.fail(abort_error(abort))
        # If the detokenizer sent the abort, the scheduler is still running the request. Otherwise the scheduler ignores
        # this message.
        self._send(AbortReq(abort.rid, abort.reason))
        self._abort_choices(choice.stream, reason="sibling")

    def _close(self, stream: ResponseStream) -> None:
        if self._streams.pop(id(stream), None) is not None and self.request_log is not None:
            self.request_log.ended(stream)
        self._client_ids.remove(stream)
        self._abort_choices(stream, reason="client")

    def _abort_choices(self, request: OpenRequest, *, reason: str) -> None:
        for rid in request.rids:
            if self._choices.pop(rid, None) is not None:
                self._send(AbortReq(rid, reason))

    def _time_tokens(self, choice: _Choice, count: int) -> None:
        now = self.clock()
        if not choice.stream.had_token:
            choice.stream.had_token = True
            choice.stream.facts.first_token_s = now
            self._timings.observe_first_token(now - choice.stream.received_s)
        if choice.last_token_s is not None:
            self._timings.observe_token_gap((now - choice.last_token_s) / count, count)
        choice.last_token_s = now

    def _send(self, message: ToEngine) -> None:
        if not self._outbox.send(message):
            log.error("the queue to the scheduler is full; %s was dropped", type(message).__name__)


def _as_text_item(item: EncodedItem) -> TextItem:
    """Convert the encoder's result to a TextItem, the only one of its request."""
    return TextItem(
        item.rid, "", [], 0, finish="stop", embedding=item.vector, cached_tokens=0, prompt_tokens=item.num_tokens
    )
