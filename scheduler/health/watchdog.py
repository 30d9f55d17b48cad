"""The scheduler's watchdog: a thread that sees whether the loop gets anywhere, and a dump for when it does not.

The loop publishes plain values that are replaced as a whole; the thread only reads them, so nothing that is wrong with
the scheduler can block or break the dump. It writes around the log, whose lock the hung thread may hold.
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
from ebbtide.runtime.suspend_aware_clock import AwakeClock

from ..core import Scheduler
from ..state import Output
from .dump import Picture, picture, render, waiting_reasons
from .progress import Activity, AdmissionAlarm, Alarm, Judge, Patience, Progress, Pulse

log = logging.getLogger(__name__)

PICTURE_EVERY_S = 0.25
FRESH_S = 0.6  # longer than an idle loop sleeps
MAX_EVENTS = 20


class LoopPulse:
    """The loop's side: what it tells of itself, turn by turn, and the little that it remembers for that."""

    def __init__(self, alarm_s: float) -> None:
        self.pulse = Pulse("loading", Activity.RUNNING)
        self.picture = Picture()
        self.events: deque[PressureEvent] = deque(maxlen=MAX_EVENTS)
        self.fresh = threading.Event()  # cleared by who wants a new picture
        self.fresh.set()
        self._progress = Progress()
        self._alarm = AdmissionAlarm(alarm_s)
        self._picture_s = 0.0
        self._progress_s = 0.0
        self._stepped = False
        self._admitted = False
        self._plan: StepPlan | None = None

    def loading(self, text: str) -> None:
        """What is being loaded or compiled."""
        self.pulse = Pulse(f"loading: {text}", Activity.RUNNING)

    def serving(self) -> None:
        """Loading is over, nothing is to be done."""
        self.pulse = Pulse("serving", Activity.IDLE)

    def begins(self, now: float) -> None:
        """A turn with something to do begins: said before anything that may hang."""
        if self.pulse.activity.may_rest:
            self._progress_s = now
            self.pulse = replace(self.pulse, activity=Activity.RUNNING, work=self.pulse.work + 1)

    def planned(self, scheduler: Scheduler, plan: StepPlan, now: float) -> None:
        """``plan`` goes to the runner. A picture is due when its batch has changed, or after a while."""
        self._plan = plan
        self._stepped = True
        self._admitted = any(item.init is not None for item in plan.items)
        pulse = self.pulse
        self.pulse = Pulse("serving", Activity.RUNNING, pulse.work, pulse.progress, pulse.forward_ct + 1)
        if self._admitted or now - self._picture_s >= PICTURE_EVERY_S:
            self._take_picture(scheduler, now)

    def turned(self, scheduler: Scheduler, output: Output, now: float) -> None:
        """A turn has ended with this output."""
        self.events.extend(output.events)
        if self._progress.saw(output, scheduler.state.running):
            self._progress_s = now
        activity = self._activity(scheduler)
        pulse = self.pulse
        became_idle = activity.may_rest and pulse.activity is not activity
        self.pulse = Pulse("serving", activity, pulse.work, self._progress.count, pulse.forward_ct)
        old = not activity.may_rest and now - self._picture_s >= PICTURE_EVERY_S
        if became_idle or old or not self.fresh.is_set():
            self._take_picture(scheduler, now)
        self._watch_admissions(scheduler, now)
        self._stepped = self._admitted = False

    def heartbeat(self, scheduler: Scheduler, handled: int, now: float) -> Heartbeat:
        """The message that says how the loop is."""
        activity = self.pulse.activity
        stalled_s = 0.0 if activity.may_rest else now - self._progress_s
        reason = "; ".join(waiting_reasons(scheduler.state)) if self._alarm.blocked_long(now) else ""
        return Heartbeat("scheduler", handled, activity.value, reason, stalled_s, len(scheduler.state.requests))

    def _take_picture(self, scheduler: Scheduler, now: float) -> None:
        self._picture_s = now
        self.picture = picture(scheduler, self._plan)
        self.fresh.set()

    def _activity(self, scheduler: Scheduler) -> Activity:
        if scheduler.idle:
            return Activity.IDLE
        if self._stepped or scheduler.num_in_flight:
            return Activity.RUNNING
        return Activity.PAUSED if scheduler.paused else Activity.BLOCKED

    def _watch_admissions(self, scheduler: Scheduler, now: float) -> None:
        state = scheduler.state
        blocked = self.pulse.activity is Activity.BLOCKED
        waits = len(state.waiting) > 0 and not scheduler.paused
        waited = self._alarm.look(waits=waits, admitted=self._admitted, blocked=blocked, now=now)
        if waited is None:
            return
        state.metrics.count("admission_alarms_total")
        log.warning(
            "nothing was admitted for %.0f s: %d wait, %d run; %s",
            waited,
            len(state.waiting),
            len(state.running),
            "; ".join(waiting_reasons(state)),
        )


class WatchdogRaw:
    """The watcher's side. ``poll`` looks once; ``start`` lets a thread do it and answers SIGUSR1 with a dump.

    write: takes the dump's text. end: ends the process, and does not return unless it is a test's.
    """

    def __init__(
        self,
        patience: Patience,
        loop: LoopPulse,
        clock: Callable[[], float],
        *,
        write: Callable[[str], None],
        end: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.poll_s = min(1.0, patience.hard_s / 100, (patience.soft_s or patience.hard_s) / 100)
        # Gaps of this length are the scheduling of a busy machine; in a longer one this process did not run.
        self._awake = AwakeClock(clock, max(4 * self.poll_s, 0.5))
        self._judge = Judge(patience)
        self._write = write
        self._end = end

    def poll(self) -> None:
        """Look at the loop; dump, and end the process, when it is time."""
        alarm = self._judge.look(self.loop.pulse, self._awake.tick())
        if alarm is Alarm.SOFT:
            self.dump(f"soft watchdog: no progress for {self._judge.stalled_s:.1f} s")
        elif alarm is Alarm.HARD:
            self.dump(f"watchdog: no progress for {self._judge.stalled_s:.1f} s, the scheduler ends itself")
            self._end()

    def dump(self, title: str) -> None:
        """Write what is known. An error in here is written too: it must not keep the process from being ended."""
        try:
            text = render(title, self.loop.pulse, self.loop.picture, list(self.loop.events), thread_stacks())
        except Exception as error:
            text = f"==== {title} ====\nthe dump itself failed: {error!r}\n"
        self._write(text)

    def start(self) -> None:
        """Watch from a thread of its own. Main thread only, for the signal's sake."""
        wake, waker = os.pipe()
        for fd in (wake, waker):
            os.set_blocking(fd, False)
        # The number reaches the pipe at once, also while the main thread is stuck in compiled code.
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(wake,), name="watchdog", daemon=True).start()

    def _watch(self, wake: int) -> None:
        while True:
            ready, _, _ = select.select([wake], [], [], self.poll_s)
            if ready and signal.SIGUSR1 in os.read(wake, 256):
                self.loop.fresh.clear()
                self.loop.fresh.wait(FRESH_S)
                self.dump("dump on demand")
            self.poll()


def create_scheduler_watchdog(config: WatchdogConfig, dump_path: str = "") -> WatchdogRaw:
    """The watchdog of this process, not yet started. ``dump_path``: a file that gets each dump besides stderr."""
    patience = Patience(config.watchdog_timeout, config.soft_watchdog_timeout, config.load_timeout)

    def end() -> None:
        os._exit(WATCHDOG_EXIT_CODE)  # no clean-up: it might wait for what hangs

    return WatchdogRaw(
        patience, LoopPulse(config.progress_alarm), time.monotonic, write=partial(write_dump, path=dump_path), end=end
    )
