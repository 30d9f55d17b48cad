"""Takes snapshots for the console: four per second while at least one viewer is connected, none otherwise."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ebbtide.errors import Rejected
from ebbtide.messages import Inspection, InspectReq

from ..metrics.metrics import LatencyWindows
from ..state import AppState
from .snapshot import Snapshot, common_part

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
PER_SLICE = 4  # number of snapshots per slice of the latency windows; a slice covers one second
MAX_VIEWERS = 16
MAX_REQUESTS = 128  # maximum number of running requests in a snapshot; the same limit holds for waiting requests
MAX_SESSIONS = 128


class ConsoleFeed:
    """Takes the snapshots that all viewers share. All methods run on the event loop's thread.

    clock: returns the Unix time in seconds.
    """

    def __init__(self, state: AppState, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._interval_s = interval_s
        self._clock = clock
        self._num_viewers = 0
        self._taking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[Inspection | None] | None = None
        self._taken = asyncio.Event()  # replaced at every snapshot
        self._inspection: Inspection | None = None
        self.last = Snapshot(0, {})

    @contextmanager
    def viewer(self) -> Iterator[None]:
        """Count a viewer while the block runs, so that snapshots are taken.

        Raises Rejected if too many viewers are connected.
        """
        if self._num_viewers >= MAX_VIEWERS:
            text = f"{MAX_VIEWERS} consoles are open, which is the limit. Close one of them."
            raise Rejected(text, status=429, kind="rate_limit_error", code="too_many_consoles", retry_after_s=5)
        self._num_viewers += 1
        if self._taking is None:
            self._start()
        try:
            yield
        finally:
            self._num_viewers -= 1
            if not self._num_viewers:
                self._stop()

    async def next(self, number: int) -> Snapshot:
        """Wait until there is a snapshot with a number above ``number``. Return the newest snapshot."""
        while self.last.number <= number:
            await self._taken.wait()
        return self.last

    @property
    def is_over(self) -> bool:
        """True if the server is shutting down and no request is open, so that the streams of the viewers must end."""
        return self._state.liveness.is_draining and not self._state.manager.num_open

    def _start(self) -> None:
        self._state.metrics.windows = LatencyWindows()
        self._taking = asyncio.create_task(self._take_snapshots(), name="console")

    def _stop(self) -> None:
        self._state.metrics.windows = self._inspection = None
        for task in (self._taking, self._asking):
            if task is not None:
                task.cancel()
        self._taking = self._asking = None

    async def _take_snapshots(self) -> None:
        latency: dict[str, object] | None = None
        number = self.last.number
        while True:
            self._inspect()
            await asyncio.sleep(self._interval_s)
            self._take_answer()
            number += 1
            if number % PER_SLICE == 0:
                latency = self._latency()
            self._publish(number, latency)
            latency = None

    def _publish(self, number: int, latency: dict[str, object] | None) -> None:
        state, inspection = self._state, self._inspection
        rids = [] if inspection is None else [req.rid for req in (*inspection.running, *inspection.waiting)]
        common = {"number": number, **common_part(state, self._clock()), "latency": latency}
        self.last = Snapshot(number, common, inspection, state.manager.owners_of(rids))
        taken, self._taken = self._taken, asyncio.Event()
        taken.set()

    def _latency(self) -> dict[str, object] | None:
        """Return the latencies of the last second and of the last minute."""
        windows = self._state.metrics.windows
        if windows is None:
            return None
        named = {"first_token": windows.first_token, "token_gap": windows.token_gap}
        minute = {name: window.whole() for name, window in named.items()}
        return {"second": {name: window.next_slice() for name, window in named.items()}, "minute": minute}

    def _inspect(self) -> None:
        """Ask the scheduler for its requests and sessions, unless a reply is pending: a step may take a long time."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="console-inspection")

    def _take_answer(self) -> None:
        if self._asking is not None and self._asking.done():
            self._inspection = self._asking.result()
            self._asking = None

    async def _ask(self) -> Inspection | None:
        try:
            reply = await self._state.control.ask(lambda call: InspectReq(call, MAX_REQUESTS, MAX_SESSIONS))
        except Rejected as error:
            log.debug("the scheduler did not list its requests and sessions for the console: %s", error)
            return None
        return reply.inspection
