"""The detokenizer process: receives tokens from the scheduler and sends text to the front process.

It sends one message per step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from ebbtide.config import DetokenizerSection
from ebbtide.errors import EbbtideError
from ebbtide.messages import (
    AbortReq,
    Heartbeat,
    TextBatch,
    TextItem,
    ToDetokenizer,
    ToFront,
    TokenBatch,
    TokenItem,
)
from ebbtide.runtime.channel import Receiver, Sender
from ebbtide.runtime.child_main import Handshake, run_child
from ebbtide.tokenization.vocabulary import Vocabulary

from .pieces import Pieces
from .stream import TextStream

log = logging.getLogger(__name__)
HEARTBEAT_S = 0.5


class Inbox(Protocol):
    """The source of token batches."""

    handled: int

    def drain(self, wait_s: float = 0.0) -> list[TokenBatch]:
        """Return all available batches. If no batch is available, wait up to ``wait_s`` seconds for one."""


class Outbox(Protocol):
    """The destination of messages to the front process."""

    def send(self, message: ToFront) -> bool:
        """Queue a message without blocking. Returns False if the message was not queued."""


class Detokenizer:
    """Converts token batches to text, with one stream per open request.

    An item with ``start`` creates the stream of its request; an item with ``finish`` removes it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces = Pieces(vocabulary)
        self._streams: dict[str, TextStream] = {}
        self._closed_early: set[str] = set()  # ended in this process, not yet in the scheduler
        self._failed: list[AbortReq] = []

    @property
    def num_open(self) -> int:
        """Number of requests that the scheduler has not ended, including those that have ended in this process."""
        return len(self._streams) + len(self._closed_early)

    def convert(self, batch: TokenBatch) -> TextBatch:
        """Return the text of the batch in the same order, without the items of requests that are not open."""
        items = [self._convert_item(item) for item in batch.items]
        return TextBatch([item for item in items if item is not None])

    def pop_failures(self) -> list[AbortReq]:
        """Return the requests aborted since the last call because their text could not be decoded."""
        failed, self._failed = self._failed, []
        return failed

    def _convert_item(self, item: TokenItem) -> TextItem | None:
        """Convert one item. If decoding raises an exception, only this request is aborted."""
        if item.start is not None:
            self._streams[item.rid] = TextStream(self._pieces, item.start)
            self._closed_early.discard(item.rid)
        stream = self._streams.get(item.rid)
        if stream is None:
            self._drop(item)
            return None
        try:
            text = self._text(stream, item)
        except Exception:
            log.exception("aborting request %s: its text could not be decoded", item.rid, extra={"rid": item.rid})
            message = "The output could not be decoded to text."
            self._failed.append(AbortReq(item.rid, "detokenizer", 500, "internal_error", message))
            self._close(item)
            return None
        if text.finish is not None:
            self._close(item)
        return text

    def _text(self, stream: TextStream, item: TokenItem) -> TextItem:
        tokens = item.tokens
        silent = (
            item.stop_token is not None
            and tokens[-1:] == [item.stop_token]
            and not stream.shows_stop_token(item.stop_token)
        )
        released = stream.push(tokens[:-1] if silent else tokens)
        stopped = released.stop is not None
        text = released.text
        if not stopped and silent:
            stream.num_tokens += 1
        if not stopped and item.finish is not None:
            text += stream.flush()
        tokens = tokens[: released.num_tokens] if stopped else tokens
        return TextItem(
            rid=item.rid,
            text=text,
            tokens=tokens,
            num_output_tokens=stream.num_tokens,
            finish="stop" if stopped else item.finish,
            matched=released.stop if stopped else item.stop_token,
            num_shown_tokens=released.num_shown,
            logprobs=None if item.logprobs is None else self._pieces.logprobs(tokens, item.logprobs),
            cached_tokens=None if item.start is None else item.start.cached_tokens,
            pressure=item.pressure,
            prompt_tokens=None if item.start is None else item.start.prompt_tokens,
            prompt=None if item.prompt is None else self._pieces.logprobs(item.prompt.tokens, item.prompt.logprobs),
            embedding=item.embedding,
        )

    def _close(self, item: TokenItem) -> None:
        del self._streams[item.rid]
        if item.finish is None:
            self._closed_early.add(item.rid)

    def _drop(self, item: TokenItem) -> None:
        if item.rid not in self._closed_early:
            dropped = len(item.tokens)
            log.debug("dropping %d tokens of the unknown request %s", dropped, item.rid, extra={"rid": item.rid})
        elif item.finish is not None:
            self._closed_early.remove(item.rid)


class HeartbeatTimer:
    """Sends the front process a heartbeat every ``HEARTBEAT_S`` seconds.

    clock: returns the time in seconds.
    """

    def __init__(self, detokenizer: Detokenizer, inbox: Inbox, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._detokenizer = detokenizer
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._due = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until the next heartbeat, always above 0."""
        return max(self._due - self._clock(), 0.001)

    def send_if_due(self) -> None:
        """Send a heartbeat if one is due."""
        now = self._clock()
        if now >= self._due:
            num_open = self._detokenizer.num_open
            beat = Heartbeat(
                "detokenizer", self._inbox.handled, "running" if num_open else "idle", num_requests=num_open
            )
            _send(self._outbox, beat)
            self._due = now + HEARTBEAT_S


def serve_once(detokenizer: Detokenizer, inbox: Inbox, outbox: Outbox, heartbeat: HeartbeatTimer) -> None:
    """Convert all available batches. If there are none, wait for one until the next heartbeat is due."""
    heartbeat.send_if_due()
    for batch in inbox.drain(heartbeat.wait_s):
        text = detokenizer.convert(batch)
        if text.items:
            _send(outbox, text)
        for abort in detokenizer.pop_failures():
            _send(outbox, abort)
        heartbeat.send_if_due()  # decoding a backlog may take longer than the heartbeat interval


def _send(outbox: Outbox, message: ToFront) -> None:
    # Text that is not sent is lost, and a full queue means that the front process has stopped reading its messages.
    if not outbox.send(message):
        raise EbbtideError("The queue to the front process is full.")


def main(section: DetokenizerSection, handshake: Handshake) -> None:
    """Run the process until a signal ends it."""
    context: zmq.Context[Any] = zmq.Context()
    inbox: Receiver[ToDetokenizer] = Receiver(context, section.addresses.detokenizer, ToDetokenizer)
    outbox: Sender[ToFront] = Sender(context, section.addresses.front)
    detokenizer = Detokenizer(section.vocabulary)
    handshake.ready()
    heartbeat = HeartbeatTimer(detokenizer, inbox, outbox, time.monotonic)
    while True:
        serve_once(detokenizer, inbox, outbox, heartbeat)


if __name__ == "__main__":
    run_child(DetokenizerSection, "detokenizer", main)
