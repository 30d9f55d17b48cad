"""Kills engine processes that have stopped sending heartbeats, after they have had time to write a dump."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from ebbtide.runtime.stacks import write_dump

from .engine import Engine
from .front_dump import silent_child_dump

if TYPE_CHECKING:
    from ..frontend import Frontend

DUMP_GRACE_S = 0.5  # time for an unresponsive child to dump its stacks before it is killed
DUMP_GRACE_SHARE = 0.02  # maximum of that time, as a share of the watchdog timeout


async def kill_silent_children(front: Frontend, engine: Engine, watchdog_timeout_s: float) -> NoReturn:
    """Kill child processes that exceed the heartbeat timeout, after time to write a dump. Runs until cancelled."""
    while True:
        name = await front.wait_for_timed_out_child()
        child, silence_s = engine.child(name), front.liveness.silence_s(name)
        child.request_dump()
        await asyncio.sleep(min(DUMP_GRACE_S, DUMP_GRACE_SHARE * watchdog_timeout_s))
        if child.exit_code is None:
            write_dump(
                silent_child_dump(name, child.pid, silence_s, front.describe()), path=str(engine.dump_path("front"))
            )
            child.kill(f"had been silent for {silence_s:.1f} s")
