"""GET /pressure: the last memory pressure events and the current use of the pools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..metrics.metrics import FrontMetrics
from ..metrics.pressure_log import PressureLog

POOL_KEY = re.compile(r"kv_(?P<part>[a-z_]+)_tokens\{pool=(?P<pool>[^{}]*)\}")
PARTS = ("available", "evictable", "protected", "session_held", "uncached")
LOAD = ("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "new_token_ratio", "token_usage")


@dataclass(frozen=True, slots=True)
class PressureRoute:
    """The route and the state it reads."""

    log: PressureLog
    metrics: FrontMetrics

    async def show(self, _: Request) -> Response:
        """GET /pressure: the last pressure events, newest last, and the current use of the pools in tokens."""
        summary = load_summary(self.metrics.gauges)
        return JSONResponse({**summary, "num_events_total": self.log.num_seen, "events": self.log.events()})


def load_summary(gauges: Mapping[str, float]) -> dict[str, Any]:
    """Return load and pool figures from the scheduler's last snapshot; all are 0 if there is no scheduler.

    A pool's ``total`` is the sum of its parts without quarantined pages; it should equal max_total_num_tokens.
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
