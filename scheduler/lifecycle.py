"""The lifecycle of a request: waiting, running, finished.

No other code writes a request's phase, the waiting queue, the running list, the rows, or their counters. The module
does not decide which requests run or are retracted, or when a request ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from ebbtide.messages import AbortReq, Finish, TokenLogprob

from .batching.queue import WaitingQueue
from .metrics import SchedulerMetrics
from .outbox import Outbox
from .request import Phase, Request

ALLOWED = {
    Phase.WAITING: {Phase.RUNNING, Phase.FINISHED},
    Phase.RUNNING: {Phase.WAITING, Phase.FINISHED},  # RUNNING -> WAITING: retracted, or released by a recovery
    Phase.FINISHED: set[Phase](),
}


class ReleaseReason(Enum):
    """The reason why a request's memory is released."""

    FINISH = auto()
    ABORT = auto()
    DISCARD = auto()  # an abort after which no other request may use the computed pages
    RETRACT = auto()
    PREEMPT = auto()


class EndListener(Protocol):
    """An object that is notified when a request ends."""

    def ended(self, req: Request, *, finished: bool) -> None:
        """Handle the end of ``req``, whose memory has already been released.

        finished: True if the request finished normally, False if it was aborted.
        """


class Lifecycle:
    """Holds every request that has not ended.

    Attributes:
        requests: all open requests by id, including choices that are in no queue because they are waiting until their
            first choice has computed the prompt.
        waiting: the queue.
        running: the running requests in order of admission.
        free_rows: the rows without a request.
        num_retracted: number of requests that were retracted and are not running again yet.
        end_listeners: called in order at the end of each request.
        on_leave: called for each request that stops running, before it ends or waits.
    """

    def __init__(
        self,
        num_rows: int,
        waiting: WaitingQueue,
        release_req: Callable[[Request, ReleaseReason], bool],
        outbox: Outbox,
        metrics: SchedulerMetrics,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.waiting = waiting
        self.running: list[Request] = []
        self.free_rows = list(range(num_rows - 1, -1, -1))
        self.num_retracted = 0
        self.end_listeners: list[EndListener] = []
        self.on_leave: Callable[[Request], None] = _ignore
        self._num_rows = num_rows
        self._release_req = release_req
        self._outbox = outbox
        self._metrics = metrics

    @property
    def num_queued(self) -> int:
        """Number of open requests that are not running: new, retracted, or waiting for their first choice."""
        return len(self.requests) - len(self.running)

    def add(self, req: Request) -> None:
        """Register a new request without queueing it."""
        if req.rid not in self.requests:  # False if the message is handled again after a repair
            self._metrics.received()
        self.requests[req.rid] = req

    def enqueue(self, req: Request, *, front: bool) -> None:
        """Put a request that has never run into the queue.

        front: True to insert it before all requests that have never run, False to append it.
        """
        self.waiting.put(req, front=front)

    def queue_siblings(self, req: Request) -> None:
        """Queue the other choices of the same prompt as ``req``.

        Call it once the prompt's pages are published or ``req`` has ended.
        """
        for sibling in req.sibling_choices:
            if sibling.phase is Phase.WAITING:
                self.enqueue(sibling, front=True)
        req.sibling_choices = []

    def start(self, req: Request, now: float) -> None:
        """Move a request from WAITING to RUNNING and give it a row.

        Call ``leave_queue`` once the queue is no longer being iterated.
        """
        _move(req, Phase.RUNNING)
        req.row = self.free_rows.pop()
        self.running.append(req)
        self._metrics.admitted(req, req.computed, now)
        if req.is_retracted:
            req.is_retracted = False
            self.num_retracted -= 1

    def leave_queue(self, started: Iterable[Request]) -> None:
        """Remove the started requests from the queue."""
        for req in started:
            self.waiting.remove(req, started=True)

    def requeue(self, req: Request, *, front: bool, counted: bool, now: float = 0.0) -> None:
        """Move a request from RUNNING to WAITING; its memory must have been released.

        Args:
            front: True to insert the request before all requests that have never run, sorted by arrival among the other
                requeued requests; False to append it.
            counted: True for a retraction, False for the recovery from an invariant violation.
            now: time in seconds; used only if ``counted``.
        """
        assert not req.steps_in_flight, f"{req} is requeued with {req.steps_in_flight} steps in flight"
        _move(req, Phase.WAITING)
        self.filter_batch(req)
        self.waiting.put(req, front=front)
        if counted:
            self.num_retracted += 1
            self._metrics.retracted(req, now)

    def finish(
        self,
        req: Request,
        reason: Finish,
        *,
        tokens: Sequence[int] = (),
        logprobs: list[TokenLogprob] | None = None,
        embedding: bytes = b"",
    ) -> None:
        """End a request normally, and add its full computed pages to the prefix cache.

        Args:
            reason: "stop" or "length".
            tokens: the last output tokens, which have not been sent yet.
            logprobs: one entry per token in ``tokens``; None if log-probabilities were not requested.
            embedding: the embedding vector, or b"" if none was requested.
        """
        self._end(req, ReleaseReason.FINISH, reason)
        self._outbox.close(req, reason, tokens, logprobs, embedding)

    def finish_at(self, req: Request, num_outputs: int) -> None:
        """End a request at a stop string. Drop the output tokens after the first ``num_outputs``."""
        del req.known[req.prompt_len + num_outputs :]
        self.finish(req, "stop")

    def abort(self, req: Request, abort: AbortReq, *, tell_front: bool, discards: bool = False) -> None:
        """End a request early.

        Args:
            req: the request.
            abort: the abort message for the front process.
            tell_front: False if the front process requested the abort.
            discards: True to remove the request's computed pages from the prefix cache.
        """
        self._end(req, ReleaseReason.DISCARD if discards else ReleaseReason.ABORT, abort.reason)
        self._outbox.close_aborted(req, abort, tell_front=tell_front)

    def recount(self) -> None:
        """Recompute the free rows and the counters from the requests. Used only by the recovery."""
        rows = {req.row for req in self.running}
        self.free_rows[:] = [row for row in range(self._num_rows - 1, -1, -1) if row not in rows]
        self.num_retracted = sum(req.is_retracted for req in self.requests.values())

    def _end(self, req: Request, why: ReleaseReason, reason: str) -> None:
        self._release_req(req, why)  # this comes first: if it raises InvariantViolation, nothing else has changed
        if req.phase is Phase.RUNNING:
            self.filter_batch(req)
        elif req in self.waiting:
            self.waiting.remove(req)
        if req.is_retracted:
            self.num_retracted -= 1
        del self.requests[req.rid]
        self._metrics.ended(req, reason, aborted=why is not ReleaseReason.FINISH)
        _move(req, Phase.FINISHED)
        for listener in self.end_listeners:
            listener.ended(req, finished=why is ReleaseReason.FINISH)
        self.queue_siblings(req)

    def filter_batch(self, req: Request) -> None:
        """Remove a request from the running batch and free its row."""
        self.on_leave(req)
        self.running.remove(req)
        assert req.row is not None
        self.free_rows.append(req.row)
        req.row = None


def _ignore(_req: Request) -> None:
    """Does nothing."""


def _move(req: Request, phase: Phase) -> None:
    """Change the phase. Raises ValueError if ALLOWED does not contain the change."""
    if phase not in ALLOWED[req.phase]:
        raise ValueError(f"{req} cannot go from {req.phase.name} to {phase.name}")
    req.phase = phase
