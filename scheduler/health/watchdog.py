"""The scheduler's watchdog: a thread that detects a loop without progress, writes a dump and ends the process.

The loop publishes immutable objects and the thread only reads them, so a broken scheduler can neither block nor corrupt
the dump. The dump bypasses the logger, whose lock the hung thread may hold.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ebbtide.config import WatchdogConfig
from ebbtide.messages import Heartbeat, PressureEvent
from ebbtide.plan import StepPlan
from ebbtide.runtime.child import WATCHDOG_EXIT_CODE
from ebbtide.runtime.stacks import thread_stacks, write_dump
from ebbtide.runtime.suspend_aware_clock import SuspendAwareClock

from ..core import Scheduler
from ..outbox import Output
from .dump import SchedulerSnapshot, render_dump, take_snapshot, waiting_reasons
from .progress import (
    Activity,
    AdmissionStallDetector,
    LoopStatus,
    ProgressCounter,
    StallDetector,
    WatchdogAction,
    WatchdogTimeouts,
)

log = logging.getLogger(__name__)

SNAPSHOT_EVERY_S = 0.25
SNAPSHOT_WAIT_S = 0.6  # longer than the sleep of an idle loop
MAX_EVENTS = 20


class LoopMonitor:
    """The part of the watchdog that the loop calls in every iteration: it publishes the status and snapshots."""

    def __init__(self, alarm_s: float) -> None:
        self.status = LoopStatus("loading", Activity.RUNNING)
        self.snapshot = SchedulerSnapshot()
        self.events: deque[PressureEvent] = deque(maxlen=MAX_EVENTS)
        self.is_fresh = threading.Event()  # cleared by the watchdog to request a new snapshot
        self.is_fresh.set()
        self._progress = ProgressCounter()
        self._admissions = AdmissionStallDetector(alarm_s)
        self._snapshot_s = 0.0
        self._progress_s = 0.0
        self._stepped = False
        self._admitted = False
        self._plan: StepPlan | None = None

    def loading_started(self, text: str) -> None:
        """Report what is being loaded or compiled.

        text: a description, for the dump.
        """
        self.status = LoopStatus(f"loading: {text}", Activity.RUNNING)

    def serving_started(self) -> None:
        """Report that loading is complete."""
        self.status = LoopStatus("serving", Activity.IDLE)

    def work_arrived(self, now: float) -> None:
        """Record the start of an iteration that handles messages. Call it before any work that may hang."""
        if not self.status.activity.expects_progress:
            self._progress_s = now
            self.status = replace(self.status, activity=Activity.RUNNING, work_periods=self.status.work_periods + 1)

    def step_planned(self, scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        """Record that ``plan`` is about to be submitted to the runner.

        Takes a snapshot if the batch has grown or the last snapshot is old.
        """
        self._plan = plan
        self._stepped = True
        self._admitted = any(item.init is not None for item in plan.items)
        last = self.status
        self.status = LoopStatus("serving", Activity.RUNNING, last.work_periods, last.progress, last.forward_ct + 1)
        if self._admitted or now - self._snapshot_s >= SNAPSHOT_EVERY_S:
            self._take_snapshot(scheduler, now)

    def iteration_ended(self, scheduler: Scheduler, output: Output, now: float) -> None:
        """Publish the status after an iteration, which produced ``output``."""
        self.events.extend(output.events)
        if self._progress.record(output, scheduler.state.running):
            self._progress_s = now
        activity = self._activity(scheduler)
        last = self.status
        became_idle = not activity.expects_progress and last.activity is not activity
        self.status = LoopStatus("serving", activity, last.work_periods, self._progress.count, last.forward_ct)
        is_old = activity.expects_progress and now - self._snapshot_s >= SNAPSHOT_EVERY_S
        if became_idle or is_old or not self.is_fresh.is_set():
            self._take_snapshot(scheduler, now)
        self._check_admissions(scheduler, now)
        self._stepped = self._admitted = False

    def heartbeat(self, scheduler: Scheduler, handled: int, now: float) -> Heartbeat:
        """Return the heartbeat message with the loop's status.

        handled: number of messages that the loop has handled.
        """
        activity = self.status.activity
        stalled_s = now - self._progress_s if activity.expects_progress else 0.0
        reason = "; ".join(waiting_reasons(scheduler.state)) if self._admissions.is_blocked_long(now) else ""
        return Heartbeat("scheduler", handled, activity.value, reason, stalled_s, len(scheduler.state.requests))

    def _take_snapshot(self, scheduler: Scheduler, now: float) -> None:
        self._snapshot_s = now
        self.snapshot = take_snapshot(scheduler, self._plan)
        self.is_fresh.set()

    def _activity(self, scheduler: Scheduler) -> Activity:
        if scheduler.idle:
            return Activity.IDLE
        if self._stepped or scheduler.num_in_flight:
            return Activity.RUNNING
        return Activity.PAUSED if scheduler.paused else Activity.BLOCKED

    def _check_admissions(self, scheduler: Scheduler, now: float) -> None:
        state = scheduler.state
        blocked = self.status.activity is Activity.BLOCKED
        waits = len(state.waiting) > 0 and not scheduler.paused
        waited = self._admissions.record(waits=waits, admitted=self._admitted, blocked=blocked, now=now)
        if waited is None:
            return
        state.metrics.count("admission_alarms_total")
        log.warning(
            "no request was admitted for %.0f s: %d waiting, %d running; %s",
            waited,
            len(state.waiting),
            len(state.running),
            "; ".join(waiting_reasons(state)),
        )


class WatchdogRaw:
    """Detects a stalled loop. ``poll`` checks the loop once; ``start`` starts a thread that polls and handles SIGUSR1.

    Attributes:
        loop: the status and snapshots that the loop publishes.
        poll_s: seconds between two checks.
    """

    def __init__(
        self,
        timeouts: WatchdogTimeouts,
        loop: LoopMonitor,
        clock: Callable[[], float],
        *,
        write: Callable[[str], None],
        end: Callable[[], None],
    ) -> None:
        """
        write: called with the text of each dump.
        end: ends the process; it returns only in tests.
        """
        self.loop = loop
        self.poll_s = min(1.0, timeouts.hard_s / 100, (timeouts.soft_s or timeouts.hard_s) / 100)
        # On a busy machine a poll is delayed by less than this time. A longer gap means that the process was suspended.
        self._clock = SuspendAwareClock(clock, max(4 * self.poll_s, 0.5))
        self._stalls = StallDetector(timeouts)
        self._write = write
        self._end = end

    def poll(self) -> None:
        """Check the loop once. Writes a dump or ends the process if a timeout has passed."""
        action = self._stalls.check(self.loop.status, self._clock.advance())
        if action is WatchdogAction.DUMP:
            self.dump(f"soft watchdog: no progress for {self._stalls.stalled_s:.1f} s")
        elif action is WatchdogAction.DUMP_AND_EXIT:
            self.dump(f"watchdog: no progress for {self._stalls.stalled_s:.1f} s; the scheduler exits")
            self._end()

    def dump(self, title: str) -> None:
        """Write a dump. If rendering the dump fails, write the error instead, so that the process still ends."""
        loop = self.loop
        try:
            text = render_dump(title, loop.status, loop.snapshot, list(loop.events), thread_stacks())
        except Exception as error:
            text = f"==== {title} ====\nthe dump itself failed: {error!r}\n"
        self._write(text)

    def start(self) -> None:
        """Start the watchdog thread. Call it in the main thread, because it installs a signal handler."""
        wake, waker = os.pipe()
        for fd in (wake, waker):
            os.set_blocking(fd, False)
        # Python's signal handler writes the signal number to the pipe at once, even if the main thread hangs in native
        # code.
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(wake,), name="watchdog", daemon=True).start()

    def _watch(self, wake: int) -> None:
        while True:
            ready, _, _ = select.select([wake], [], [], self.poll_s)
            if ready and signal.SIGUSR1 in os.read(wake, 256):
                self.loop.is_fresh.clear()
                self.loop.is_fresh.wait(SNAPSHOT_WAIT_S)
                self.dump("dump on demand")
            self.poll()


def create_scheduler_watchdog(config: WatchdogConfig, dump_path: str = "") -> WatchdogRaw:
    """Create the watchdog of this process without starting it.

    Dumps are written to stderr and, if ``dump_path`` is set, to that file.
    """
    timeouts = WatchdogTimeouts(config.watchdog_timeout, config.soft_watchdog_timeout, config.load_timeout)

    def end() -> None:
        os._exit(WATCHDOG_EXIT_CODE)  # exit without cleanup, which could wait for the hung thread

    return WatchdogRaw(
        timeouts, LoopMonitor(config.progress_alarm), time.monotonic, write=partial(write_dump, path=dump_path), end=end
    )
