"""The scheduler loop with a watchdog on a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ebbtide.scheduler.batching.admission import AdmissionResult, Verdict
from ebbtide.scheduler.batching.scheduling_policies import ReservesPerStep
from ebbtide.scheduler.health.progress import WatchdogTimeouts
from ebbtide.scheduler.health.watchdog import LoopMonitor, WatchdogRaw
from ebbtide.scheduler.memory.prefix_cache import MatchResult

from ..world import Shape, World, greedy, text

TIMEOUT_S = 10.0
STEP_S = 0.02
ALARM_S = 3.0


class Ended(Exception):
    """Raised where the watchdog would end the process."""


class Bench:
    """The loop of process.py on a fake clock, with a watchdog that polls in between."""

    def __init__(self, shape: Shape | None = None, *, soft_s: float | None = None, hard_s: float = TIMEOUT_S) -> None:
        shape = shape or Shape(num_pages=16, page_size=4, num_rows=4)
        self.world = World(replace(shape, memory_check="off"))  # recovery would hide the injected fault
        self.scheduler = self.world.scheduler
        self.now = 1000.0
        self.loop = LoopMonitor(ALARM_S)
        self.loop.serving_started()
        self.dumps: list[str] = []
        self.watchdog = WatchdogRaw(
            WatchdogTimeouts(hard_s, soft_s, load_s=100.0),
            self.loop,
            lambda: self.now,
            write=self.dumps.append,
            end=self._end,
        )
        self.poll_due = self.now
        self.settles = True
        self.after_step: Callable[[], None] = lambda: None

    def _end(self) -> None:
        raise Ended

    def generate(self, rid: str, prompt: str = "tide", max_tokens: int = 4) -> None:
        self.world.generate(rid, text(prompt), greedy(max_tokens, ignore_eos=True))

    def turn(self, step_s: float = STEP_S) -> None:
        """One iteration like ``Loop.turn``. A step takes ``step_s`` seconds."""
        if self.world.inbox:
            self.loop.work_arrived(self.now)
        self.world.receive()
        plan = self.scheduler.next_step(self.now)
        if plan is not None:
            self.loop.step_planned(self.scheduler, plan, self.now)
            self.world.runner.submit(plan)
            self.sleep(step_s)
            self.after_step()
        elif not self.scheduler.num_in_flight:
            self.sleep(0.5 if self.scheduler.idle else 0.05)
        else:
            self.sleep(0.001)
        if self.scheduler.num_in_flight and self.settles:
            self.scheduler.settle(self.world.runner.collect())
        output = self.scheduler.take_output()
        self.tokens = sum(len(item.tokens) for item in output.items)
        self.loop.iteration_ended(self.scheduler, output, self.now)

    def sleep(self, seconds: float) -> None:
        """Advance the clock while the process runs: the watchdog polls at its interval."""
        end = self.now + seconds
        while self.poll_due <= end:
            self.now = max(self.now, self.poll_due)
            self.watchdog.poll()
            self.poll_due = self.now + self.watchdog.poll_s
        self.now = end

    def until_idle(self) -> None:
        while self.world.inbox or not self.scheduler.idle:
            self.turn()
        self.turn()

    def seconds_to_the_end(self, turn: Callable[[], None] | None = None) -> float:
        """Seconds until the watchdog ends the process. ``turn`` is one iteration of the stalled loop."""
        started = self.now
        try:
            while self.now - started < 100 * TIMEOUT_S:
                (turn or self.turn)()
        except Ended:
            return self.now - started
        raise AssertionError("the watchdog noticed nothing")


def in_time(bench: Bench, turn: Callable[[], None] | None = None) -> None:
    assert TIMEOUT_S <= bench.seconds_to_the_end(turn) <= 1.1 * TIMEOUT_S
    assert len(bench.dumps) == 1
    assert "the scheduler exits" in bench.dumps[0]


class NeverAdmits(ReservesPerStep):
    """An admission rule that never admits."""

    def start_step(self, running: object) -> None: ...

    def charge(self, req: object) -> None: ...

    def evaluate(self, req: object, *, without: object = ()) -> AdmissionResult:
        return AdmissionResult(Verdict.WAIT, MatchResult())


class Somebody:
    tag = "somebody"
    is_locked = False
    is_tree_node = False
