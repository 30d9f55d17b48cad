"""What the front says becomes requests, or a refusal. Knows messages, sessions and queues; plans nothing."""

from __future__ import annotations

from msgspec.structs import replace

from ebbtide.errors import Rejected
from ebbtide.messages import (
    AbortReq,
    CloseSessionReq,
    ControlReq,
    FinishReq,
    GenerateReq,
    ListSessionsReq,
    OpenSessionReq,
    RunnerInfo,
    ToScheduler,
    UseVocabulary,
)
from ebbtide.paging import least_pages
from ebbtide.rng import choice_seed

from .control import Control
from .deadlines import Deadlines
from .endings import Endings
from .memory.session_aware_cache import SessionAwareCache
from .request import History, Request
from .sessions.session_controller import SessionController
from .state import State

RETRY_AFTER_S = 1.0  # what a client is told to wait when the queue is full


class Intake:
    """Takes messages one by one. left_waiting: whether the last step left somebody in the queue."""

    def __init__(self, state: State, info: RunnerInfo, endings: Endings) -> None:
        self.left_waiting = False
        self._state = state
        self._info = info
        self._endings = endings
        self._arrivals = 0
        self._came_alone = False  # the HTTP request of the last prompt came when there was no other
        cache = state.pool.tree_cache
        slots = cache if isinstance(cache, SessionAwareCache) else None
        limits = state.limits
        self.sessions = SessionController(
            limits.sessions, slots, limits.context_length, state.pool.page_size, self._misfit
        )
        state.end_listeners.append(self.sessions)
        self.control = Control(state)
        self._deadlines = Deadlines(state, endings)

    def tick(self, now: float) -> None:
        """Let time pass: idle sessions, limits of requests, and what operators wait for."""
        self.sessions.expire_sessions(now)
        self._deadlines.expire(now)
        self.control.tick(now)

    def take(self, message: ToScheduler, now: float) -> None:
        """One message. Unknown ids are ignored: the end of a request may cross its abort."""
        match message:
            case GenerateReq(session=None):
                self._generate(message, now)
            case GenerateReq():
                self._turn(message, now)
            case AbortReq() | FinishReq():
                self._end(message)
            case OpenSessionReq() | CloseSessionReq() | ListSessionsReq():
                self._state.output.replies.append(self.sessions.handle_session_req(message))
            case UseVocabulary():
                self._state.grammars.use(message)
            case ControlReq():
                self.control.take(message, now)

    def _end(self, message: AbortReq | FinishReq) -> None:
        req = self._state.requests.get(message.rid)
        match message:
            case AbortReq() if req is not None:
                self._endings.abort(req, message, tell_front=False)
            case FinishReq(rid=rid, num_output_tokens=count, num_shown_tokens=shown):
                if req is not None:
                    self._endings.stop_at(req, count)
                shown = count if shown is None else shown
                if req is None or shown < count:
                    self.sessions.truncate_last_turn(rid, shown)

    def _turn(self, message: GenerateReq, now: float) -> None:
        """A session's turn is an ordinary request with the whole context as its prompt, or it is refused."""
        try:
            request = self.sessions.accept_turn(message)
        except Rejected as refusal:
            code = refusal.code or "invalid_value"
            self._state.metrics.refused(code, len(message.rids))
            self._state.output.aborts += [
                AbortReq(rid, code, refusal.status, code, refusal.message) for rid in message.rids
            ]
            return
        self._generate(request, now)

    def _generate(self, message: GenerateReq, now: float) -> None:
        """Queue the first choice; the others wait until its prompt is computed, so that it is computed once."""
        choices = [self._request(message, index, rid, now) for index, rid in enumerate(message.rids)]
        first = choices[0]
        if not message.num_before:
            self._came_alone = len(self._state.requests) == len(choices)
        if not first.prompt_len:
            self._refuse(choices, 400, "invalid_value", "The prompt is empty.")
            return
        misfit = self._misfit(first.prompt_len, message.sampling.max_tokens)
        if misfit:
            self._refuse(choices, 400, "context_length_exceeded", misfit)
            return
        if self._queue_is_full():
            limit = self._state.limits.max_queued_requests
            text = f"The server is busy: no more than {limit} requests may wait (--max-queued-requests)."
            self._refuse(choices, 429, "queue_full", text)
            return
        self._deadlines.watch(message, now)
        first.sibling_choices = choices[1:]
        self._state.add_request_to_queue(first, is_retracted=False)

    def _queue_is_full(self) -> bool:
        """Whether the newest requests are too many to wait.

        Free rows count as places only while nobody has been left waiting by a step: then memory is what is short. A
        server with nothing else to do takes any HTTP request, however many prompts and choices it has: to come again
        would not help it.
        """
        limit = self._state.limits.max_queued_requests
        if limit is None or self._came_alone:
            return False
        places = 0 if self.left_waiting else len(self._state.free_rows)
        return self._state.num_queued - places > limit

    def _request(self, message: GenerateReq, choice: int, rid: str, now: float) -> Request:
        sampling = message.sampling
        stop_ids = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= set(self._info.eos_token_ids)
        if choice:
            sampling = replace(sampling, seed=choice_seed(sampling.seed, choice), prompt_logprobs=None)
        req = Request(
            rid=rid,
            arrival=self._arrivals,
            prompt_len=len(message.prompt),
            known=list(message.prompt),
            sampling=sampling,
            text=message.text,
            page_size=self._state.pool.page_size,
            priority=message.priority,
            namespace=message.namespace,
            grammar=message.grammar,
            stop_ids=frozenset(stop_ids),
            protected=self._state.limits.max_retractions == 0,
            history=History(arrival_s=now, queued_since_s=now),
        )
        self._arrivals += 1
        self._state.requests[rid] = req
        self._state.grammars.add(req)
        return req

    def _misfit(self, prompt_len: int, max_tokens: int) -> str:
        """Why such a request can never run, or "". Nothing that cannot run may block the queue."""
        pool = self._state.pool
        if least_pages(prompt_len, max_tokens, pool.page_size) <= pool.capacity:
            return ""
        return f"The prompt has {prompt_len} tokens and the KV pool holds {pool.capacity * pool.page_size}."

    def _refuse(self, choices: list[Request], status: int, code: str, text: str) -> None:
        """Answer for a request that never got in."""
        retry_after_s = RETRY_AFTER_S if status == 429 else None
        for req in choices:
            abort = AbortReq(req.rid, code, status, code, text, retry_after_s=retry_after_s)
            self._endings.abort(req, abort, tell_front=True)
