"""Handles messages from the front process: creates, ends and refuses requests, and carries out session and control
operations. The module plans no steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from ebbtide.config import SchedulerConfig
from ebbtide.errors import Rejected
from ebbtide.messages import (
    AbortReq,
    CloseSessionReq,
    ControlReq,
    FinishReq,
    GenerateReq,
    InspectReq,
    ListSessionsReq,
    OpenSessionReq,
    PageMapReq,
    RunnerInfo,
    ToScheduler,
    UseVocabulary,
)
from ebbtide.rng import choice_seed

from .batching.wait_estimate import WaitEstimate
from .control import Control
from .deadlines import Deadlines
from .gates import Gates
from .grammar.grammar_state import Grammars
from .health.inspection import Inspector
from .lifecycle import Lifecycle
from .metrics import SchedulerMetrics
from .outbox import Outbox
from .request import History, Request
from .request_memory import Memory
from .sessions.session_controller import SessionController

RETRY_AFTER_S = 1.0  # minimum that is sent to clients when the queue is full


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Handles messages one by one.

    Attributes:
        left_waiting: True if the last step left requests in the queue.
        num_token_ids: see ``StepPlan``.
    """

    lifecycle: Lifecycle
    memory: Memory
    outbox: Outbox
    metrics: SchedulerMetrics
    gates: Gates
    grammars: Grammars
    sessions: SessionController
    deadlines: Deadlines
    config: SchedulerConfig
    info: RunnerInfo
    control: Control
    inspector: Inspector
    waits: WaitEstimate
    left_waiting: bool = False
    num_token_ids: int = field(default=0, init=False)
    _num_arrivals: int = field(default=0, init=False)
    # True if no other request was open when the last HTTP request arrived.
    _came_alone: bool = field(default=False, init=False)

    def on_timer(self, now: float) -> None:
        """Handle everything that depends on time: idle sessions, deadlines of requests, pending control requests."""
        self.sessions.expire_sessions(now)
        self.deadlines.expire(now)
        self.control.on_timer(now)

    def handle(self, message: ToScheduler, now: float) -> None:
        """Handle one message. Unknown request ids are ignored, because a request may end before its abort arrives."""
        match message:
            case GenerateReq(session=None):
                self._generate(message, now)
            case GenerateReq():
                self._turn(message, now)
            case AbortReq() | FinishReq():
                self._end(message)
            case OpenSessionReq() | CloseSessionReq() | ListSessionsReq():
                self.outbox.output.replies.append(self.sessions.handle_session_req(message))
            case UseVocabulary(pieces=pieces):
                self.grammars.set_vocabulary(message)
                self.num_token_ids = len(pieces) if len(pieces) < self.info.vocab_size else 0
            case ControlReq():
                self.control.handle(message, now)
            case InspectReq() | PageMapReq():
                self.outbox.output.replies.append(self.inspector.reply(message, now))

    def _end(self, message: AbortReq | FinishReq) -> None:
        req = self.lifecycle.requests.get(message.rid)
        match message:
            case AbortReq() if req is not None:
                self.lifecycle.abort(req, message, tell_front=False)
            case FinishReq(rid=rid, num_output_tokens=count, num_shown_tokens=shown):
                if req is not None:
                    self.lifecycle.finish_at(req, count)
                shown = count if shown is None else shown
                if req is None or shown < count:
                    self.sessions.truncate_last_turn(rid, shown)

    def _turn(self, message: GenerateReq, now: float) -> None:
        """Handle a session turn as an ordinary request whose prompt is the whole conversation, or refuse it."""
        try:
            request = self.sessions.accept_turn(message)
        except Rejected as refusal:
            code = refusal.code or "invalid_value"
            self.metrics.refused(code, len(message.rids))
            self.outbox.output.aborts += [
                AbortReq(rid, code, refusal.status, code, refusal.message) for rid in message.rids
            ]
            return
        self._generate(request, now)

    def _generate(self, message: GenerateReq, now: float) -> None:
        """Queue the first choice, or refuse the request.

        The other choices wait until the prompt is computed, so that it is computed only once.
        """
        choices = [self._request(message, index, rid, now) for index, rid in enumerate(message.rids)]
        first = choices[0]
        if not message.num_before:
            self._came_alone = len(self.lifecycle.requests) == len(choices)
        if not first.prompt_len:
            self._refuse(choices, 400, "invalid_value", "The prompt is empty.")
            return
        problem = self.memory.never_fits(first.prompt_len, message.sampling.max_tokens)
        if problem:
            self._refuse(choices, 400, "context_length_exceeded", problem)
            return
        if not self.lifecycle.waiting:
            self.waits.reset()
        num_before = self.lifecycle.waiting.num_before(message.priority, message.account)
        expected_s = self.waits.expected_s(num_before, now)
        if self._queue_is_full():
            limit = self.config.max_queued_requests
            text = f"The server is busy: the queue is limited to {limit} waiting requests (--max-queued-requests)."
            self._refuse(choices, 429, "queue_full", text, expected_s)
            return
        if message.queue_timeout_s is not None and expected_s > message.queue_timeout_s:
            text = f"The server is busy: the expected wait is {expected_s:.0f} s, longer than --queue-timeout allows."
            self._refuse(choices, 429, "queue_full", text, expected_s)
            return
        self.deadlines.watch(message, now)
        first.sibling_choices = choices[1:]
        self.lifecycle.enqueue(first, front=False)

    def _queue_is_full(self) -> bool:
        """Return True if the last HTTP request exceeds the queue limit.

        A free row counts as a place in the queue only if the last step left no request waiting: otherwise memory is the
        bottleneck. An idle server accepts an HTTP request with any number of prompts and choices, because a retry could
        not succeed either.
        """
        limit = self.config.max_queued_requests
        if limit is None or self._came_alone:
            return False
        places = 0 if self.left_waiting else len(self.lifecycle.free_rows)
        return self.lifecycle.num_queued - places > limit

    def _request(self, message: GenerateReq, choice: int, rid: str, now: float) -> Request:
        sampling = message.sampling
        stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= frozenset(self.info.eos_token_ids)
        if choice:
            sampling = replace(sampling, seed=choice_seed(sampling.seed, choice), prompt_logprobs=None)
        req = Request(
            rid=rid,
            arrival=self._num_arrivals,
            prompt_len=len(message.prompt),
            known=message.prompt,
            shares_known=True,
            sampling=sampling,
            text=message.text,
            page_size=self.memory.pool.page_size,
            priority=message.priority,
            account=message.account,
            namespace=message.namespace,
            grammar=message.grammar,
            max_samples=1 if message.grammar else self.info.max_samples,
            stop_ids=stop_ids,
            protected=self.config.max_retractions == 0,
            history=History(arrival_s=now, queued_since_s=now),
        )
        self._num_arrivals += 1
        self.lifecycle.add(req)
        self.gates.add(req)
        return req

    def _refuse(
        self, choices: list[Request], status: int, code: str, text: str, expected_s: float | None = None
    ) -> None:
        """Abort all choices of a request that was never queued.

        expected_s: the expected wait; None if a retry cannot help.
        """
        retry_after_s = None if expected_s is None else max(expected_s, RETRY_AFTER_S)
        for req in choices:
            abort = AbortReq(req.rid, code, status, code, text, retry_after_s=retry_after_s)
            self.lifecycle.abort(req, abort, tell_front=True)
