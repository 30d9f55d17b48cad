"""The scheduler's verbs: receive, next_step, settle.

Messages in, plans and tokens out: no clock, no socket, no tensor. Time is passed in, as seconds of any steady clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from ebbtide.errors import GrammarError, InvariantViolation
from ebbtide.messages import RunnerInfo, Stats, TokenLogprob, ToScheduler
from ebbtide.plan import PlanItem, StepPlan, StepResult

from .batching.planner import Planner
from .batching.scheduling_policies import Rules, rules_for
from .dispatcher import Intake
from .endings import Endings
from .grammar.grammar_state import GrammarCompiler, Grammars
from .health.invariant_checker import InvariantChecker
from .health.recovery import Flights, Recovery
from .memory.host_tier import HostTier
from .memory.pool import Pool
from .metrics import pool_gauges
from .pressure import Pressure
from .prompt_logprobs import record_prompt_logprobs
from .request import Phase, Request
from .state import Limits, Output, State

log = logging.getLogger(__name__)


class Scheduler:
    """Continuous batching over one pool of pages. A step is mixed: decode rows first, then prefill chunks."""

    def __init__(
        self,
        pool: Pool,
        info: RunnerInfo,
        limits: Limits,
        rules: Rules | None = None,
        compiler: GrammarCompiler | None = None,
    ) -> None:
        rules = rules or rules_for(limits.retract_policy)
        state = State(pool, limits, rules.ratio(limits.schedule_conservativeness), to_front=rules.to_front)
        if info.num_host_pages:
            state.add_host_tier(HostTier(info, state.metrics.count))
        if compiler is not None:
            state.grammars = Grammars(compiler, state.metrics)
        self.state = state
        self._info = info
        pressure = Pressure(state, rules.pick, rules.headroom)
        self._endings = Endings(state, pressure)
        self._planner = Planner(state, pressure, self._endings, rules.admission(pool, state.ratio, state.lengths))
        self._flights: Flights = deque()
        self._checker = InvariantChecker(state)
        self._recovery = Recovery(state, self._flights)
        self._intake = Intake(state, info, self._endings)
        self._steps = 0

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, nothing is on its way. Not the same as "no step was possible"."""
        return not self.state.requests and not self._flights

    @property
    def paused(self) -> bool:
        """Whether an operator wants no further steps."""
        return self._intake.control.paused

    @property
    def num_sessions(self) -> int:
        """Open sessions."""
        return self._intake.sessions.num_open

    @property
    def idle_changes(self) -> tuple[int, int, int]:
        """Three numbers that change with what can change while nothing runs: open sessions, flushes, and ends of
        requests that never ran.
        """
        return self.num_sessions, self._intake.control.num_flushes, self.state.metrics.num_ends

    @property
    def num_turns(self) -> int:
        """Turns of sessions that run or wait."""
        return self._intake.sessions.num_leases

    @property
    def num_in_flight(self) -> int:
        """Plans handed out and not settled."""
        return len(self._flights)

    def receive(self, messages: Iterable[ToScheduler], now: float) -> None:
        """Take in what the front says; also when it says nothing, because time passes."""
        self.state.metrics.passed(now)
        for take in [partial(self._intake.tick, now), *(partial(self._intake.take, m, now) for m in messages)]:
            try:
                take()
            except InvariantViolation as violation:
                self._violated(violation, everybody=True)
                take()
        for req, why in self.state.grammars.poll():
            self._endings.broke_grammar(req, why)
        self.state.filter_batch()

    def next_step(self, now: float) -> StepPlan | None:
        """The next plan; None when nothing can run now, which is not idleness. Evicts and retracts on the way."""
        if self.paused:
            return None
        try:
            items = self._planner.plan(now, results_due=bool(self._flights))
            self._intake.left_waiting = bool(self.state.waiting)
            if not items:
                self._look_into_blockage()
                return None
            by_row = {req.row: req for req in self.state.running}
            requests = [by_row[item.row] for item in items]
            tier = self.state.host_tier
            copies = tier.take_copies() if tier is not None else None
        except InvariantViolation as violation:
            self._violated(violation, everybody=True)
            return None
        self.state.metrics.planned(items)
        plan = StepPlan(self._steps, items, copies)
        self._steps += 1
        self._flights.append((plan, list(requests)))
        return self._audited(plan, requests)

    def settle(self, result: StepResult) -> None:
        """Book the oldest plan's result: deliver tokens, publish computed prompts, end what is finished."""
        plan, requests = self._flights.popleft()
        assert plan.number == result.number, f"result {result.number} came for plan {plan.number}"
        logprobs = iter(result.logprobs or [None] * len(result.tokens))
        tokens = iter(result.tokens)
        prompt_logprobs = iter(result.prompt_logprobs)
        for item, req in zip(plan.items, requests, strict=True):
            token = next(tokens) if item.samples else None
            logprob = next(logprobs) if item.samples else None
            found = next(prompt_logprobs) if item.prompt_logprobs is not None else []
            if req is None:
                continue  # it lost its memory while this was on its way, and will be computed again
            req.steps_in_flight -= 1
            if req.phase is Phase.FINISHED:
                continue  # it ended while this was on its way
            length = len(req.known)
            try:
                self._computed(req, item)
                record_prompt_logprobs(req, item, found, self._endings)
                if token is not None:
                    self._sampled(req, token, logprob)
            except InvariantViolation as violation:
                if req.rid in self.state.requests:
                    del req.known[length:]  # not handed out: drawn again, and the same, after the recovery
                self._violated(violation, everybody=True)
                break  # the rest of the result belongs to requests that are computed again
        self.state.filter_batch()

    def self_check_during_busy(self) -> None:
        """The books after a step, and a share of all pages in turn."""
        self._checked(self._checker.self_check_during_busy)

    def on_idle(self) -> None:
        """Everything, when nothing runs; the admission ratio starts afresh."""
        self._checked(self._checker.on_idle)
        self.state.ratio.reset()

    def take_output(self) -> Output:
        """What the detokenizer and the front must be told since the last call."""
        output, self.state.output = self.state.output, Output()
        return output

    def snapshot(self) -> Stats:
        """Counters and load gauges for the metrics registry."""
        state = self.state
        accounting = state.pool.accounting()
        size = state.pool.page_size
        used = accounting.total - state.pool.usable_pages
        gauges = {
            "num_running_reqs": len(state.running),
            "num_queue_reqs": state.num_queued,
            "num_retracted_reqs": state.num_retracted,
            "num_grammar_queue_reqs": state.grammars.num_waiting,
            "new_token_ratio": state.ratio.value,
            "token_usage": used / max(accounting.total, 1),
            "max_total_num_tokens": accounting.total * size,
            "page_size": size,
            "num_streaming_sessions": self._intake.sessions.num_streaming,
            "streaming_session_held_tokens": accounting.session_held * size,
        }
        for pool in state.pools:
            gauges |= pool_gauges(pool)
        state.metrics.totals["evicted_tokens_total"] = state.pool.evicted_pages * size
        return state.metrics.snapshot(gauges)

    def _look_into_blockage(self) -> None:
        """Work waits, nothing runs and nothing can: if the books are wrong somewhere, that is why."""
        if self.state.waiting and not (self.state.running or self._flights or self.state.grammars.num_waiting):
            self._checked(self._checker.on_idle)

    def _audited(self, plan: StepPlan, requests: list[Request]) -> StepPlan | None:
        """The plan after an audit of the pages that it changes; without the items that stand on pages in doubt."""
        if self.state.limits.memory_check == "off":
            return plan
        while True:  # ends because each violation costs the plan the item that it is about
            try:
                self._checker.audit_plan(plan.items, requests)
                return plan
            except InvariantViolation as violation:
                self._violated(violation, everybody=False)
            _, left = self._flights.pop()
            kept = [(item, req) for item, req in zip(plan.items, left, strict=True) if req is not None]
            if not kept and plan.copies is None:
                return None  # with copies it runs without items: the host tier counts on them
            requests = [req for _, req in kept]
            plan = replace(plan, items=[item for item, _ in kept])
            self._flights.append((plan, list(requests)))

    def _checked(self, check: Callable[[], None]) -> None:
        if self.state.limits.memory_check == "off":
            return
        try:
            check()
        except InvariantViolation as violation:
            self._violated(violation, everybody=False)

    def _violated(self, violation: InvariantViolation, *, everybody: bool) -> None:
        """``strict`` raises; otherwise log, count, repair and serve on."""
        if self.state.limits.memory_check == "strict":
            raise violation
        self.state.metrics.count("kv_invariant_violations_total")
        pages = self._recovery.recover(violation.pages, everybody=everybody)
        gone = "; ".join(f"{name} {numbers}" for name, numbers in pages.items()) or "none"
        log.error("The memory books do not balance: %s. Pages out of service: %s", violation, gone)

    def _computed(self, req: Request, item: PlanItem) -> None:
        """The item's K/V exists now. Nothing to do for a request whose memory was taken back meanwhile."""
        if req.phase is not Phase.RUNNING:
            return
        req.num_confirmed = item.end
        if req.num_shared < req.prompt_len // req.page_size:
            self.state.pool.publish(req, min(req.num_confirmed, req.prompt_len))
        if req.sibling_choices and req.num_confirmed >= req.prompt_len:
            self._endings.queue_siblings(req)

    def _sampled(self, req: Request, token: int, logprob: TokenLogprob | None) -> None:
        """Book one output token."""
        req.samples_in_flight -= 1
        try:
            complete = self.state.grammars.advance(req, token)
        except GrammarError as error:
            self._endings.broke_grammar(req, str(error))
            return
        req.known.append(token)
        self.state.metrics.sampled(req)
        if token in req.stop_ids and req.num_outputs > req.sampling.min_tokens:
            self._endings.finish(req, "stop", token=token, logprob=logprob)
        elif complete:
            self._endings.emit(req, token, logprob)
            self._endings.finish(req, "stop")  # apart, because this token's text belongs to the answer
        elif req.num_outputs >= req.sampling.max_tokens or len(req.known) >= self.state.limits.context_length:
            self._endings.finish(req, "length", token=token, logprob=logprob)
        else:
            self._endings.emit(req, token, logprob)
