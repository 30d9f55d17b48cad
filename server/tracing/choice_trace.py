"""The phases and events of one choice, built from the scheduler's messages. This module does not use OpenTelemetry.

Times are seconds on the system's monotonic clock, as in ``PhaseChange``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ebbtide.messages import PhaseChange, PressureEvent, PressureVictim

Attributes = dict[str, str | bool | int | float]


@dataclass(slots=True)
class Phase:
    """A phase of a choice: "queue", "prefill" or "decode". end_s: infinity while the phase lasts."""

    name: str
    start_s: float
    end_s: float = math.inf
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class Event:
    """An event of a choice: "retracted", "restored" or "resumed"."""

    name: str
    time_s: float
    attributes: Attributes = field(default_factory=dict)


class ChoiceTrace:
    """The phases and events of one choice, in order.

    Attributes:
        ended: True if the choice or the scheduler process has ended.
    """

    def __init__(self, index: int, sent_s: float) -> None:
        """sent_s: time at which the front process sent the request to the scheduler."""
        self.index = index
        self.phases = [Phase("queue", sent_s)]
        self.events: list[Event] = []
        self.ended = False
        self._retracted: Event | None = None  # the last retraction; None if the choice has run again

    @property
    def has_run(self) -> bool:
        """True if the scheduler has started the choice."""
        return len(self.phases) > 1

    def apply(self, change: PhaseChange) -> None:
        """Record a phase change. Changes after the end are ignored."""
        if self.ended:
            return
        match change.phase:
            case "prefill":
                self._prefill(change)
            case "queue":
                self._next("queue", change.time_s)
                self._retracted = Event("retracted", change.time_s)
                self.events.append(self._retracted)
            case "end":
                self.end(change.time_s)
            case name:
                self._next(name, change.time_s)

    def retracted(self, event: PressureEvent, victim: PressureVictim, page_size: int) -> None:
        """Add the attributes of the oldest retraction that has none: the event may arrive after the choice has resumed.

        page_size: tokens per page of the pool that lacked pages.
        """
        found = next((one for one in self.events if one.name == "retracted" and not one.attributes), None)
        if found is not None:
            found.attributes |= {
                "ebbtide.retraction.reason": event.cause,
                "ebbtide.retraction.number": victim.num_retractions,
                "ebbtide.retraction.tokens_to_recompute": victim.tokens_to_recompute,
                "ebbtide.retraction.freed_pages": victim.freed_tokens // page_size,
                "ebbtide.retraction.output_tokens": victim.num_output_tokens,
                "ebbtide.retraction.offloaded": victim.offloaded,
                "ebbtide.retraction.pool": event.pool,
            }

    def end(self, time_s: float) -> None:
        """Record the end. Does nothing if the choice has already ended."""
        if not self.ended:
            self.ended = True
            self.phases[-1].end_s = max(time_s, self.phases[-1].start_s)

    def _prefill(self, change: PhaseChange) -> None:
        sources: Attributes = {
            "ebbtide.tokens_to_compute": change.tokens_to_compute,
            "ebbtide.cached_tokens": change.cached_tokens,
            "ebbtide.restored_tokens": change.restored_tokens,
        }
        self._next("prefill", change.time_s, sources)
        if self._retracted is None:
            return
        if change.restored_tokens:
            self.events.append(Event("restored", change.time_s, {"ebbtide.restored_tokens": change.restored_tokens}))
        waited = {"ebbtide.waited_s": round(change.time_s - self._retracted.time_s, 6)}
        self.events.append(Event("resumed", change.time_s, {**sources, **waited}))
        self._retracted = None

    def _next(self, name: str, time_s: float, attributes: Mapping[str, str | bool | int | float] = {}) -> None:
        self.phases[-1].end_s = time_s
        self.phases.append(Phase(name, time_s, attributes=dict(attributes)))
