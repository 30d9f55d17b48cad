"""The last pressure events, for GET /pressure."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from ebbtide.messages import PressureEvent

NUM_EVENTS = 256


class PressureLog:
    """Keeps the last ``NUM_EVENTS`` events, oldest first. clock: returns Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[dict[str, Any]] = deque(maxlen=NUM_EVENTS)
        self._num_seen = 0

    @property
    def num_seen(self) -> int:
        """Number of events since the start, including dropped ones."""
        return self._num_seen

    def add(self, event: PressureEvent) -> None:
        """Append an event with its time of arrival."""
        victims = [_as_dict(victim) for victim in event.victims]
        self._events.append({"time": self._clock(), **_as_dict(event), "victims": victims})
        self._num_seen += 1

    def events(self) -> list[dict[str, Any]]:
        """Return the events as JSON objects, newest last."""
        return list(self._events)


def _as_dict(part: msgspec.Struct) -> dict[str, Any]:
    """Convert a message to a dict, with the field names that the wire format omits."""
    return msgspec.structs.asdict(part)
