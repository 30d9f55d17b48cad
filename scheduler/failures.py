"""Aborts individual requests after internal errors: exceptions and invalid logits.

The other requests of the step are not affected.
"""

from __future__ import annotations

import logging

from ebbtide.messages import (
    AbortReq,
    CloseSessionReq,
    ControlReq,
    GenerateReq,
    ListSessionsReq,
    OpenSessionReq,
    Reply,
    ToScheduler,
)
from ebbtide.plan import ItemFailure

from .lifecycle import Lifecycle
from .metrics import SchedulerMetrics
from .outbox import Outbox
from .request import Phase, Request

log = logging.getLogger(__name__)

INTERNAL_ERROR = "internal_error"
INVALID_OUTPUT = "model_output_invalid"
INTERNAL_TEXT = "An internal error ended this request; the server's log has the details."
INVALID_TEXT = "The model's output is invalid: its logits are NaN or infinite, or leave no token to sample."


class Failures:
    """Aborts requests with HTTP status 500."""

    def __init__(self, lifecycle: Lifecycle, outbox: Outbox, metrics: SchedulerMetrics) -> None:
        self._lifecycle = lifecycle
        self._outbox = outbox
        self._metrics = metrics

    def end_item(self, req: Request, failure: ItemFailure, step: int) -> None:
        """Abort the request whose item failed in the runner.

        Invalid logits may come from K/V that an earlier step computed and published, so the request's pages are removed
        from the prefix cache.
        """
        log_fields = {"rid": req.rid}
        if failure.invalid_logits:
            self._metrics.count("num_invalid_logits_total")
            log.warning(
                "Request %s ends in step %d: %s.", req.rid, step, failure.problem or INVALID_TEXT, extra=log_fields
            )
            self._abort(req, INVALID_OUTPUT, INVALID_TEXT, discards=True)
            return
        log.error("Request %s ends in step %d: %s.", req.rid, step, failure.problem, extra=log_fields)
        self._abort(req, INTERNAL_ERROR, INTERNAL_TEXT)

    def end(self, req: Request, error: Exception, occasion: str) -> None:
        """Abort the request whose processing raised ``error``. Re-raise ``error`` if the request has already ended.

        occasion: what the scheduler was doing, for the log.
        """
        log.error("Request %s ends: %s failed.", req.rid, occasion, exc_info=error, extra={"rid": req.rid})
        if req.phase is Phase.FINISHED:
            raise error
        self._abort(req, INTERNAL_ERROR, INTERNAL_TEXT)

    def end_message(self, message: ToScheduler, error: Exception) -> None:
        """Reply with status 500 to a message whose handling raised ``error``.

        Re-raises ``error`` if messages of this type get no reply.
        """
        log.error("A %s could not be handled.", type(message).__name__, exc_info=error)
        match message:
            case GenerateReq(rids=rids):
                for rid in rids:
                    self._refuse(rid)
            case OpenSessionReq() | CloseSessionReq() | ListSessionsReq() | ControlReq():
                self._outbox.output.replies.append(Reply(message.call, 500, INTERNAL_ERROR, INTERNAL_TEXT))
            case _:
                raise error

    def _refuse(self, rid: str) -> None:
        req = self._lifecycle.requests.get(rid)
        if req is not None:
            self._abort(req, INTERNAL_ERROR, INTERNAL_TEXT)
            return
        self._metrics.refused(INTERNAL_ERROR, 1)
        self._outbox.output.aborts.append(AbortReq(rid, INTERNAL_ERROR, 500, INTERNAL_ERROR, INTERNAL_TEXT))

    def _abort(self, req: Request, code: str, text: str, *, discards: bool = False) -> None:
        abort = AbortReq(req.rid, code, 500, code, text, req.num_outputs)
        self._lifecycle.abort(req, abort, tell_front=True, discards=discards)
