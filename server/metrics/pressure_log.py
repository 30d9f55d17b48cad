"""The last pressure events, for GET /pressure and the console."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ebbtide.messages import PressureEvent, Resumption

NUM_EVENTS = 256


class PressureLog:
    """Keeps the last ``NUM_EVENTS`` events, oldest first.

    clock: returns Unix time in seconds.

    Attributes:
        revision: increases with every change; can be passed to ``changed_since``.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.revision = 0
        self._clock = clock
        self._events: deque[dict[str, Any]] = deque(maxlen=NUM_EVENTS)
        self._revisions: dict[int, int] = {}  # event number → revision of its last change
        self._waiting: dict[str, tuple[int, dict[str, Any]]] = {}  # rid → event number and victim
        self._num_seen = 0

    @property
    def num_seen(self) -> int:
        """Number of events since the start, including dropped ones."""
        return self._num_seen

    def add(self, event: PressureEvent) -> None:
        """Append an event, with its arrival time."""
        if len(self._events) == NUM_EVENTS:
            self._forget(self._events[0])
        self._num_seen += 1
        victims = [{**_as_dict(victim), "outcome": None, "waited_s": None} for victim in event.victims]
        self._events.append(
            {"number": self._num_seen, "time": self._clock(), **_as_dict(event), "victims": victims},
        )
        self._waiting |= {victim["rid"]: (self._num_seen, victim) for victim in victims}
        self._changed(self._num_seen)

    def resumed(self, resumptions: Iterable[Resumption]) -> None:
        """Record that retracted requests are running again or have ended. Requests of dropped events are ignored."""
        for resumption in resumptions:
            number, victim = self._waiting.pop(resumption.rid, (0, {}))
            if number:
                victim |= {"outcome": resumption.outcome, "waited_s": round(resumption.waited_s, 3)}
                self._changed(number)

    def on_scheduler_death(self) -> None:
        """Record that no retracted request will run again, because the scheduler has ended."""
        for number, victim in self._waiting.values():
            victim["outcome"] = "engine_dead"
            self._changed(number)
        self._waiting.clear()

    def events(self) -> list[dict[str, Any]]:
        """Return the events as JSON objects, newest last."""
        return list(self._events)

    def changed_since(self, revision: int) -> list[dict[str, Any]]:
        """Return the events that were added or changed after ``revision``, newest last."""
        return [event for event in self._events if self._revisions[event["number"]] > revision]

    def _changed(self, number: int) -> None:
        self.revision += 1
        self._revisions[number] = self.revision

    def _forget(self, event: dict[str, Any]) -> None:
        del self._revisions[event["number"]]
        for victim in event["victims"]:
            if self._waiting.get(victim["rid"], (0, {}))[0] == event["number"]:
                del self._waiting[victim["rid"]]


def _as_dict(part: msgspec.Struct) -> dict[str, Any]:
    """Convert a message to a dict with its field names, which the wire format omits."""
    return msgspec.structs.asdict(part)
