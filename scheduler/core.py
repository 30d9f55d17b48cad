"""The scheduler's interface: receive, next_step, settle.

The module turns messages into plans and output tokens, and uses no clock, socket or tensor. The caller passes the
current time, in seconds of any monotonic clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from msgspec.structs import replace

from ebbtide.errors import InvariantViolation
from ebbtide.messages import Stats, ToScheduler
from ebbtide.plan import PlanItem, StepPlan, StepResult

from .batching.planner import Planner
from .dispatcher import Dispatcher
from .failures import Failures
from .health.invariant_checker import InvariantChecker
from .health.recovery import Recovery
from .item_extras import NO_EXTRAS, item_extras
from .item_results import ItemResults
from .load_gauges import load_gauges
from .outbox import Output
from .request import Phase, Request
from .state import State

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Scheduler:
    """Schedules requests with continuous batching. A step consists of decode rows, followed by prefill chunks.

    ``build.py`` assembles the scheduler.
    """

    state: State
    planner: Planner
    dispatcher: Dispatcher
    checker: InvariantChecker
    recovery: Recovery
    failures: Failures
    item_results: ItemResults
    memory_check: str  # "strict", "quarantine" or "off"
    _num_plans: int = field(default=0, init=False)

    @property
    def idle(self) -> bool:
        """True if no request is running or waiting and no step is in flight.

        A scheduler that could not plan a step is not necessarily idle.
        """
        return not self.state.requests and not self.state.steps_in_flight

    @property
    def paused(self) -> bool:
        """True if an operator paused the scheduler."""
        return self.dispatcher.control.paused

    @property
    def num_sessions(self) -> int:
        """Number of open sessions."""
        return self.dispatcher.sessions.num_open

    @property
    def idle_changes(self) -> tuple[int, int, int]:
        """The number of open sessions, of flushes and of ended requests. The statistics change only if one of these
        numbers changes.
        """
        return self.num_sessions, self.dispatcher.control.num_flushes, self.state.metrics.num_ends

    @property
    def num_turns(self) -> int:
        """Number of session turns that are running or waiting."""
        return self.dispatcher.sessions.num_leases

    @property
    def num_in_flight(self) -> int:
        """Number of plans that were returned and are not settled yet."""
        return len(self.state.steps_in_flight)

    def receive(self, messages: Iterable[ToScheduler], now: float) -> None:
        """Handle incoming messages and timers. Call this in every iteration, even without messages."""
        self.state.metrics.stamp(now)
        dispatcher = self.dispatcher
        self._repeated(partial(dispatcher.on_timer, now))
        for message in messages:
            try:
                self._repeated(partial(dispatcher.handle, message, now))
            except InvariantViolation:
                raise
            except Exception as error:
                self.failures.end_message(message, error)
        for req, abort in self.state.gates.poll():
            self.state.lifecycle.abort(req, abort, tell_front=True)

    def next_step(self, now: float) -> StepPlan | None:
        """Return the next plan. Evict pages and retract requests if necessary.

        Returns None if nothing can run now, which does not mean that the scheduler is idle.
        """
        if self.paused:
            return None
        try:
            items = self.planner.plan(now, has_steps_in_flight=bool(self.state.steps_in_flight))
            items = self._without_failed(items)
            self.dispatcher.left_waiting = bool(self.state.waiting)
            if not items:
                self._check_blocked()
                return None
            by_row = {req.row: req for req in self.state.running}
            requests = [by_row[item.row] for item in items]
            tier = self.state.host_tier
            copies = tier.take_copies() if tier is not None else None
        except InvariantViolation as violation:
            self._violated(violation, everybody=True)
            return None
        self.state.metrics.planned(items)
        plan = StepPlan(self._num_plans, items, copies, self.dispatcher.num_token_ids)
        self._num_plans += 1
        self.state.steps_in_flight.append((plan, list(requests)))
        return self._audited(plan, requests)

    def settle(self, result: StepResult) -> None:
        """Apply the result of the oldest plan in flight: emit tokens, publish prompt pages, finish requests."""
        plan, requests = self.state.steps_in_flight.popleft()
        assert plan.number == result.number, f"received result {result.number} for plan {plan.number}"
        sampled = zip(result.tokens, result.logprobs or repeat(None), strict=False)
        extras = item_extras(plan, result)
        for number, (item, req) in enumerate(zip(plan.items, requests, strict=True)):
            tokens, logprobs = next(sampled) if item.num_samples else ([], None)
            extra = extras.get(number, NO_EXTRAS)
            if req is None:
                continue  # a recovery has released the request's memory; the tokens will be recomputed
            req.steps_in_flight -= 1
            if req.phase is Phase.FINISHED:
                continue
            if extra.failure is not None:
                self.failures.end_item(req, extra.failure, plan.number)
                continue
            length = len(req.known)
            try:
                self.item_results.apply(req, item, tokens, logprobs, extra)
            except InvariantViolation as violation:
                if req.rid in self.state.requests:
                    del req.known[length:]  # do not send the tokens: the recomputation samples the same ones again
                self._violated(violation, everybody=True)
                break  # the rest of the result belongs to requests that will be recomputed
            except Exception as error:
                del req.known[length:]
                self.failures.end(req, error, f"processing the result of step {plan.number}")

    def self_check_during_busy(self) -> None:
        """Check the accounting equation of each pool, and a part of the pages. Call it after each step."""
        self._checked(self.checker.self_check_during_busy)

    def on_idle(self) -> None:
        """Run the full check and reset the new-token ratio. Call it when the scheduler becomes idle."""
        self._checked(self.checker.on_idle)
        self.state.ratio.reset()

    def take_output(self) -> Output:
        """Return the messages for the detokenizer and the front process that were added since the last call."""
        return self.state.outbox.drain()

    def snapshot(self) -> Stats:
        """Returns counters and load gauges for the metrics registry."""
        state = self.state
        state.metrics.totals["evicted_tokens_total"] = state.pool.evicted_pages * state.pool.page_size
        return state.metrics.snapshot(load_gauges(state, self.dispatcher.sessions))

    def _check_blocked(self) -> None:
        """Run the full check if requests are waiting but none is running: an accounting error may be the cause."""
        if self.state.waiting and not (
            self.state.running or self.state.steps_in_flight or self.state.gates.num_waiting
        ):
            self._checked(self.checker.on_idle)

    def _audited(self, plan: StepPlan, requests: list[Request]) -> StepPlan | None:
        """Audit the pages that a plan uses. Return the plan without the items that the audit rejected.

        Returns None if nothing is left to run.
        """
        if self.memory_check == "off":
            return plan
        while True:  # the loop ends because each violation removes an item from the plan
            try:
                self.checker.audit_plan(plan.items, requests)
                return plan
            except InvariantViolation as violation:
                self._violated(violation, everybody=False)
            _, left = self.state.steps_in_flight.pop()
            kept = [(item, req) for item, req in zip(plan.items, left, strict=True) if req is not None]
            if not kept and plan.copies is None:
                return None  # a plan with copies must run even without items: the host tier needs the copies
            requests = [req for _, req in kept]
            plan = replace(plan, items=[item for item, _ in kept])
            self.state.steps_in_flight.append((plan, list(requests)))

    def _checked(self, check: Callable[[], None]) -> None:
        if self.memory_check == "off":
            return
        try:
            check()
        except InvariantViolation as violation:
            self._violated(violation, everybody=False)

    def _violated(self, violation: InvariantViolation, *, everybody: bool) -> None:
        """In mode ``strict``, raise ``violation``; in mode ``quarantine``, log and count it and repair the state."""
        if self.memory_check == "strict":
            raise violation
        self.state.metrics.count("kv_invariant_violations_total")
        pages = self.recovery.recover(violation.pages, everybody=everybody)
        gone = "; ".join(f"{name} {numbers}" for name, numbers in pages.items()) or "none"
        log.error("The KV accounting does not balance: %s. Quarantined pages: %s", violation, gone)

    def _repeated(self, handle: Callable[[], None]) -> None:
        """Call ``handle``. If it raises InvariantViolation, repair the state and call it again."""
        try:
            handle()
        except InvariantViolation as violation:
            self._violated(violation, everybody=True)
            handle()

    def _without_failed(self, items: list[PlanItem]) -> list[PlanItem]:
        """Abort the requests whose items could not be created. Return the items of the other requests."""
        failed = self.planner.items.take_failures()
        rows = {req.row for req, _ in failed}
        for req, error in failed:
            self.failures.end(req, error, "planning its next step")
        return [item for item in items if item.row not in rows] if rows else items
