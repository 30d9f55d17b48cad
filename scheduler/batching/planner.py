"""Plans the next step: decode rows first, then prefill chunks, then new admissions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebbtide.plan import PlanItem

from ..lifecycle import Lifecycle
from ..request import Request
from ..retraction import Retractor, RetractReason
from .admitter import Admitter
from .look_ahead import LookAhead
from .new_token_ratio import NewTokenRatio
from .plan_items import PlanItems
from .preemption import ForcedRetraction, Preemption


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Creates the plan of each step. The argument ``now`` of its methods is the step's time in seconds."""

    lifecycle: Lifecycle
    retractor: Retractor
    preemption: Preemption
    forced: ForcedRetraction
    admitter: Admitter
    look_ahead: LookAhead
    items: PlanItems
    ratio: NewTokenRatio
    chunked_prefill_size: int

    def plan(self, now: float, *, has_steps_in_flight: bool) -> list[PlanItem]:
        """Return the items of the next step, or an empty list if nothing can run.

        If memory is short or a request must be retracted while steps are in flight, the list is empty too: the results
        of these steps must be delivered first, and they may free memory.
        """
        items = self._plan(now, has_steps_in_flight=has_steps_in_flight)
        if items:
            self.retractor.num_steps += 1
        return items

    def _plan(self, now: float, *, has_steps_in_flight: bool) -> list[PlanItem]:
        reason = self._retract_reason(has_steps_in_flight=has_steps_in_flight)
        if reason is not None:
            if has_steps_in_flight:
                return []
            rows = self.look_ahead.rows_to_plan() if reason is RetractReason.MEMORY else []
            if rows:
                return self._decode_items(rows)
            self._make_room(reason, now)
        items = self._decode_items(self.lifecycle.running)
        chunks, budget, retracted = self._prefill_items(now)
        items += chunks
        may_admit = not retracted and reason in (None, RetractReason.PRIORITY)
        if may_admit or not self.lifecycle.running:
            items += self.admitter.admit(budget, now)
        return items

    def _retract_reason(self, *, has_steps_in_flight: bool) -> RetractReason | None:
        """Return the reason to retract requests before the next step; None if evicting cached pages is enough."""
        running = self.lifecycle.running
        if has_steps_in_flight:  # a request takes no further step after its final token
            running = [req for req in running if not req.final_token_in_flight]
        if not self.retractor.check_decode_mem(running):
            return RetractReason.MEMORY
        if self.preemption.due():
            return RetractReason.PRIORITY
        return RetractReason.TEST if self.forced.due() else None

    def _make_room(self, reason: RetractReason, now: float) -> None:
        match reason:
            case RetractReason.MEMORY:
                self.retractor.retract_decode(now)
            case RetractReason.PRIORITY:
                self.preemption.preempt(now)
            case RetractReason.TEST:
                self.forced.retract(now)

    def _decode_items(self, rows: Sequence[Request]) -> list[PlanItem]:
        items = [
            self.items.decode(req)
            for req in rows
            if req.computed == len(req.known) + req.samples_in_flight - 1 and not req.awaits_result
        ]
        if items:
            self.ratio.decay()
            self.admitter.admission.advance()
        return items

    def _prefill_items(self, now: float) -> tuple[list[PlanItem], int, bool]:
        """Return the next chunks of partly prefilled requests, the remaining token budget, and whether a request was
        retracted.

        A request is retracted if no page is left for its next chunk, unless it has a step in flight or is protected. A
        protected request gets its pages in the next step, before which other requests are retracted.
        """
        items: list[PlanItem] = []
        budget = self.chunked_prefill_size
        retracted = False
        behind = [req for req in self.lifecycle.running if req.computed < len(req.known) + req.samples_in_flight - 1]
        for req in behind:
            if budget <= 0:
                break
            item = self.items.prefill(req, budget)
            if item is not None:
                items.append(item)
                budget -= len(item.tokens or ())
            elif not (req.steps_in_flight or req.protected):
                self.retractor.retract_without_page([req], now)
                retracted = True
        return items, budget, retracted
