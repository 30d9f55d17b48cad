"""The encoder process. It receives texts from the front process and computes their embeddings or scores.

Texts are computed in micro-batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import zmq

from ebbtide.config import EncoderSection
from ebbtide.messages import AbortReq, EncodedBatch, EncodedItem, EncodeReq, Heartbeat, ToEncoder, ToFront
from ebbtide.runtime.channel import Receiver, Sender
from ebbtide.runtime.child_main import Handshake, run_child

from ..cpu_threads import use_threads
from .encoder import Encoder, Rows, load_encoder
from .encoder_queue import EncoderQueue, WaitingInput

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
CPU_BATCH_TOKENS = 1024  # default --embedding-batch-tokens; a batch of a large model then takes some seconds
CUDA_BATCH_TOKENS = 16_384
LATE = "The request did not end in time ('timeout' in the request, or --request-timeout)."


class Inbox(Protocol):
    """The source of messages."""

    handled: int

    def drain(self, wait_s: float = 0.0) -> list[ToEncoder]:
        """Return all available messages. If there are none, first wait up to ``wait_s`` seconds for one."""


class Outbox(Protocol):
    """The destination of messages to the front process."""

    def send(self, message: ToFront) -> bool:
        """Queue a message without blocking. Returns False if the message was not queued."""


class Loop:
    """The loop of the process: receive messages, compute one batch, send the results. clock: returns seconds."""

    def __init__(
        self, encoder: Encoder, queue: EncoderQueue, inbox: Inbox, outbox: Outbox, clock: Callable[[], float]
    ) -> None:
        self._encoder = encoder
        self._queue = queue
        self._inbox = inbox
        self._outbox = outbox
        self._clock = clock
        self._heartbeat_due = clock()

    def turn(self) -> None:
        """Run one iteration. It waits for messages only if no input is waiting."""
        self._send_heartbeat()
        wait_s = 0.0 if len(self._queue) else max(self._heartbeat_due - self._clock(), 0.001)
        for message in self._inbox.drain(wait_s):
            match message:
                case EncodeReq():
                    self._receive(message)
                case AbortReq():
                    self._queue.remove(message.rid)
            self._send_heartbeat()  # tokenizing thousands of texts takes longer than the heartbeat interval
        for late in self._queue.pop_expired(self._clock()):
            self._abort(late.rid, 504, "timeout", LATE)
        batch = self._queue.pop_batch()
        if batch:
            self._compute(batch)

    def _receive(self, message: EncodeReq) -> None:
        if not self._queue.has_room(message.rid):
            limit = self._queue.limit
            text = f"The server is busy: the queue is limited to {limit} waiting requests (--max-queued-requests)."
            self._abort(message.rid, 429, "queue_full", text)
            return
        value: str | tuple[str, str] | list[int] = message.text if message.ids is None else message.ids
        if message.other is not None:
            value = (message.text, message.other)
        try:
            num_tokens = self._encoder.count_tokens(value)
        except Exception:
            log.exception("aborting request %s: its text could not be tokenized", message.rid)
            self._abort(message.rid, 500, "internal_error", "The text could not be tokenized.")
            return
        limit = self._encoder.info.context_length
        if num_tokens > limit:
            text = f"This model's maximum context length is {limit} tokens, but an input has {num_tokens} tokens."
            self._abort(message.rid, 400, "context_length_exceeded", f"{text} Please shorten it.")
            return
        deadline_s = None if message.timeout_s is None else self._clock() + message.timeout_s
        self._queue.add(WaitingInput(message.rid, value, num_tokens, deadline_s))

    def _compute(self, batch: list[WaitingInput]) -> None:
        """Compute a batch and send its results.

        After an exception, each input is computed alone; only the inputs that raise again fail.
        """
        started = self._clock()
        try:
            rows = self._encoder.compute([one.value for one in batch])
        except Exception as error:
            if len(batch) > 1:
                log.warning("A batch of %d inputs failed with %r. Each input is now computed alone.", len(batch), error)
                for one in batch:
                    self._compute([one])
                return
            log.exception("aborting request %s: its embedding or score could not be computed", batch[0].rid)
            self._abort(batch[0].rid, 500, "internal_error", "The embedding or score could not be computed.")
            return
        self._send(batch, rows, self._clock() - started)

    def _send(self, batch: list[WaitingInput], rows: Rows, seconds: float) -> None:
        items = []
        for one, row in zip(batch, rows, strict=True):
            if np.isfinite(row).all():
                items.append(EncodedItem(one.rid, row.tobytes(), one.num_tokens))
            else:
                self._abort(one.rid, 500, "model_output_invalid", "The model's output is NaN or infinite.")
        num_computed = len(batch) * max(one.num_tokens for one in batch)
        self._put(EncodedBatch(items, num_computed, seconds))

    def _abort(self, rid: str, status: int, code: str, text: str) -> None:
        self._put(AbortReq(rid, code, status, code, text))

    def _send_heartbeat(self) -> None:
        now = self._clock()
        if now >= self._heartbeat_due:
            waiting = len(self._queue)
            beat = Heartbeat("encoder", self._inbox.handled, "running" if waiting else "idle", num_requests=waiting)
            self._put(beat)
            self._heartbeat_due = now + HEARTBEAT_S

    def _put(self, message: ToFront) -> None:
        if not self._outbox.send(message):
            raise RuntimeError("The queue to the front is full.")  # the front process does not read its messages


def main(section: EncoderSection, handshake: Handshake) -> None:
    """Load the model, then run the loop until a signal ends the process."""
    handshake.progress(f"Loading {section.files.name}")
    use_threads(0)
    config = section.encoder
    encoder = load_encoder(section.files, config)
    default = CPU_BATCH_TOKENS if config.embedding_device == "cpu" else CUDA_BATCH_TOKENS
    context: zmq.Context[Any] = zmq.Context()
    inbox: Receiver[ToEncoder] = Receiver(context, section.addresses.encoder, ToEncoder)
    outbox: Sender[ToFront] = Sender(context, section.addresses.front)
    queue = EncoderQueue(config.embedding_batch_tokens or default, section.max_queued)
    handshake.ready(encoder=encoder.info)
    loop = Loop(encoder, queue, inbox, outbox, time.monotonic)
    while True:
        loop.turn()


if __name__ == "__main__":
    run_child(EncoderSection, "encoder", main)
