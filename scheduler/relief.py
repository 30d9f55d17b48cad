"""Making room: when somebody has to give way, who does, and how the world hears of it.

Three causes, one path: the next step does not fit, a waiting request has a higher priority, or a test asks for it.
"""

from __future__ import annotations

import logging
from enum import Enum

from ebbtide.messages import PressureEvent, PressureVictim

from .batching.admission import Verdict
from .batching.policies import Candidate
from .batching.scheduling_policies import AdmissionRule
from .endings import Endings
from .health.invariant_checker import InvariantChecker
from .pressure import Pressure, Retraction, Why
from .request import Request
from .state import State

log = logging.getLogger(__name__)


class Cause(Enum):
    """Why somebody must give way."""

    MEMORY = "memory"
    PRIORITY = "priority"
    TEST = "test"


class Relief:
    """Decides whether room must be made before a step, and makes it."""

    def __init__(self, state: State, pressure: Pressure, endings: Endings, admission: AdmissionRule) -> None:
        self._state = state
        self._pressure = pressure
        self._endings = endings
        self._admission = admission
        self._steps = 0
        self._last_test = 0

    def stepped(self) -> None:
        """A step was planned."""
        self._steps += 1

    def cause(self, *, results_due: bool) -> Cause | None:
        """Whether room must be made. Evicts from the prefix cache if that is enough.

        results_due: requests whose last result is on its way take no further step and are left out.
        """
        running = self._state.running
        if results_due:
            running = [req for req in running if not req.final_token_in_flight]
        if not self._pressure.check_decode_mem(running):
            return Cause.MEMORY
        if self._state.limits.schedule_policy == "priority" and self._preemptible():
            return Cause.PRIORITY
        interval = self._state.limits.test_retract_interval
        if interval and self._steps - self._last_test >= interval and self._test_victims():
            return Cause.TEST
        return None

    def make_room(self, cause: Cause, now: float) -> None:
        """Send back whom it takes. No results may be on their way."""
        if cause is Cause.MEMORY:
            event = self._pressure.retract_decode(self._state.running)
            if event.aborted is not None:
                self._doubt_the_books(event.aborted)
        elif cause is Cause.PRIORITY:
            event = self._preempt()
        else:
            event = self._retract_for_test()
        for victim in event.victims:
            self.went_back(victim.req, now)
        self._publish(event)
        if event.aborted is not None:
            self._endings.exhausted(event.aborted)

    def _doubt_the_books(self, last: Request) -> None:
        """Nobody is given up for a page that was only lost in the books. Raises InvariantViolation if one was."""
        if self._state.limits.memory_check == "off":
            return
        self._state.running.append(last)
        InvariantChecker(self._state).on_idle()
        self._state.running.remove(last)

    def went_back(self, req: Request, now: float) -> None:
        """A request has lost its memory: book it and let it wait."""
        self._state.num_retracted += 1
        self._state.metrics.retracted(req, now)
        self._state.add_request_to_queue(req, is_retracted=True)

    def _head(self) -> Request | None:
        return next(iter(self._state.waiting), None)

    def _may_start(self, head: Request, without: list[Candidate]) -> bool:
        """Whether ``head`` could start now if those candidates did not run."""
        gone = {candidate.req.rid for candidate in without}
        self._admission.begin(req for req in self._state.running if req.rid not in gone)
        verdict = self._admission.judge(head, extra_pages=sum(candidate.frees for candidate in without)).verdict
        return verdict is not Verdict.WAIT and bool(self._state.free_rows or without)

    def _preemptible(self) -> list[Candidate]:
        """Whom the head of the queue may displace, if that is needed and enough; else nobody."""
        head = self._head()
        if head is None or head.steps_in_flight or not self._state.grammars.ready(head):
            return []
        lower = self._pressure.lower_ranked(self._state.running, head.priority)
        if not lower or self._may_start(head, []) or not self._may_start(head, lower):
            return []
        return lower

    def _preempt(self) -> Retraction:
        event = self._pressure.begin(Cause.PRIORITY.value)
        head = self._head()
        assert head is not None
        for candidate in self._preemptible():
            if self._may_start(head, []):
                break
            self._pressure.send_back(self._pressure.candidate(candidate.req), event, Why.PREEMPT)
        self._state.metrics.count("num_preempted_requests_total", len(event.victims))
        self._pressure.end(event)
        return event

    def _test_victims(self) -> list[Request]:
        """Without a bound only requests that made a token since they started, so that even K = 1 ends."""
        bounded = self._state.limits.max_retractions >= 0
        return [
            req
            for req in self._state.running
            if not req.protected and (bounded or req.num_outputs > req.history.outputs_at_start)
        ]

    def _retract_for_test(self) -> Retraction:
        event = self._pressure.begin(Cause.TEST.value)
        victims = self._test_victims()
        victim = victims[self._steps % len(victims)]
        self._last_test = self._steps
        self._pressure.send_back(self._pressure.candidate(victim), event, Why.RETRACT)
        self._pressure.end(event)
        return event

    def _publish(self, event: Retraction) -> None:
        """One WARNING and one PressureEvent an event."""
        state, size = self._state, self._state.pool.page_size
        victims = [
            PressureVictim(
                rid=victim.req.rid,
                num_output_tokens=victim.req.num_outputs,
                prompt_tokens=victim.req.prompt_len,
                freed_tokens=victim.freed_pages * size,
                tokens_to_recompute=victim.lost_tokens,
                num_retractions=victim.req.history.retraction_count,
                offloaded=victim.offloaded,
            )
            for victim in event.victims
        ]
        state.output.events.append(
            PressureEvent(
                step=self._steps,
                cause=event.cause,
                victims=victims,
                available_before=event.old_available_tokens,
                available_after=event.available_tokens,
                ratio_before=event.old_ratio,
                ratio_after=event.new_ratio,
                num_running=len(state.running),
                num_waiting=len(state.waiting),
                aborted=None if event.aborted is None else event.aborted.rid,
            )
        )
        log.warning(
            "Retract requests (%s): %s; %d tokens gained, available %d -> %d tokens, new_token_ratio %.4f -> %.4f%s",
            event.cause,
            ", ".join(f"{v.rid} ({v.num_output_tokens} outputs, {v.freed_tokens // size} pages)" for v in victims)
            or "none",
            sum(victim.freed_tokens for victim in victims),
            event.old_available_tokens,
            event.available_tokens,
            event.old_ratio,
            event.new_ratio,
            "" if event.aborted is None else f"; {event.aborted.rid} does not fit even alone and is given up",
        )
