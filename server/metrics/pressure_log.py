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
    """The last ``NUM_EVENTS`` events, oldest first. ``clock`` gives Unix time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[dict[str, Any]] = deque(maxlen=NUM_EVENTS)
        self._num_seen = 0

    @property
    def num_seen(self) -> int:
        """Events since the start, also those that are forgotten."""
        return self._num_seen

    def add(self, event: PressureEvent) -> None:
        """Remember an event under the time at which it came."""
        victims = [_as_dict(victim) for victim in event.victims]
        self._events.append({"time": self._clock(), **_as_dict(event), "victims": victims})
        self._num_seen += 1

    def events(self) -> list[dict[str, Any]]:
        """The events as JSON objects, newest last."""
        return list(self._events)


def _as_dict(part: msgspec.Struct) -> dict[str, Any]:
    """A message with its field names: on the wire between processes they are left out."""
    return msgspec.structs.asdict(part)
