"""GET /pressure: who gave way when memory was short, and how the pools are used now. Only remembers and shows."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.messages import PressureEvent

from ..metrics.metrics import FrontMetrics

NUM_EVENTS = 256
POOL_KEY = re.compile(r"kv_(?P<part>[a-z_]+)_tokens\{pool=(?P<pool>[^{}]*)\}")
PARTS = ("available", "evictable", "protected", "session_held", "uncached")
LOAD = ("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "new_token_ratio", "token_usage")


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
        victims = [_named(victim) for victim in event.victims]
        self._events.append({"time": self._clock(), **_named(event), "victims": victims})
        self._num_seen += 1

    def events(self) -> list[dict[str, Any]]:
        """The events as JSON objects, newest last."""
        return list(self._events)


@dataclass(frozen=True, slots=True)
class PressureRoute:
    """The route, bound to what it shows."""

    log: PressureLog
    metrics: FrontMetrics

    async def show(self, _: Request) -> Response:
        """GET /pressure: the last pressure events, newest last, and the live use of the pools in tokens."""
        bar = page_bar(self.metrics.gauges)
        return JSONResponse({**bar, "num_events_total": self.log.num_seen, "events": self.log.events()})


def page_bar(gauges: Mapping[str, float]) -> dict[str, Any]:
    """Load and pools from the scheduler's last snapshot; all 0 when there is no scheduler.

    A pool's ``total`` is the sum of its parts, without pages in quarantine: what max_total_num_tokens should be.
    """
    pools: dict[str, dict[str, int]] = {"full": dict.fromkeys((*PARTS, "total"), 0)}
    for key, tokens in gauges.items():
        match = POOL_KEY.fullmatch(key)
        if match is not None:
            pool = pools.setdefault(match["pool"], dict.fromkeys((*PARTS, "total"), 0))
            pool[match["part"]] = int(tokens)
            pool["total"] += int(tokens) if match["part"] in PARTS else 0
    load = {name: gauges.get(name, 0.0) for name in LOAD}
    counts = {name: int(value) if name.startswith("num_") else value for name, value in load.items()}
    return {**counts, "max_total_num_tokens": int(gauges.get("max_total_num_tokens", 0)), "pools": pools}


def _named(part: msgspec.Struct) -> dict[str, Any]:
    """A message with its field names: on the wire between processes they are left out."""
    return msgspec.structs.asdict(part)
