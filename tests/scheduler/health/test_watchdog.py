"""The watchdog on a fake clock: every stall is detected in time, and nothing else is reported as a stall."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.config import WatchdogConfig
from ebbtide.messages import AbortReq, ControlReq, GenerateReq, PressureEvent, PressureVictim
from ebbtide.runtime.stacks import thread_stacks
from ebbtide.runtime.suspend_aware_clock import SuspendAwareClock
from ebbtide.scheduler.batching.admission import AdmissionResult, Verdict
from ebbtide.scheduler.batching.scheduling_policies import ReservesPerStep
from ebbtide.scheduler.health.dump import MAX_BYTES, render_dump, take_snapshot
from ebbtide.scheduler.health.progress import Activity, LoopStatus, WatchdogTimeouts
from ebbtide.scheduler.health.watchdog import LoopMonitor, WatchdogRaw, create_scheduler_watchdog
from ebbtide.scheduler.memory.prefix_cache import MatchResult
from ebbtide.scheduler.outbox import Output
from ebbtide.scheduler.retraction import RetractReason

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


# ---------------------------------------------------------------------- stalls


def test_a_queue_head_that_never_fits_is_detected() -> None:
    bench = Bench()
    bench.world.allocator.take(16, _Somebody())
    bench.generate("a")
    in_time(bench)
    assert "waits: a: needs 1 pages and 0 are usable" in bench.dumps[0]


class _Somebody:
    tag = "somebody"
    is_locked = False
    is_tree_node = False


def test_a_lost_wake_up_is_detected() -> None:
    bench = Bench()
    bench.generate("a")
    bench.world.receive()
    (req,) = bench.scheduler.state.waiting
    bench.scheduler.state.waiting.remove(req)
    bench.loop.work_arrived(bench.now)
    in_time(bench)
    assert "1 open requests" in bench.dumps[0]
    assert "queue of 0" in bench.dumps[0]


def test_a_forward_that_never_returns_is_detected() -> None:
    bench = Bench()
    bench.generate("a", max_tokens=40)
    for _ in range(5):
        bench.turn()
    plan = bench.scheduler.next_step(bench.now)
    assert plan is not None
    bench.loop.step_planned(bench.scheduler, plan, bench.now)
    in_time(bench, lambda: bench.sleep(1.0))


def test_a_first_forward_that_never_returns_is_detected_with_its_request_in_the_dump() -> None:
    bench = Bench()
    bench.generate("first")
    bench.loop.work_arrived(bench.now)
    bench.world.receive()
    plan = bench.scheduler.next_step(bench.now)
    assert plan is not None
    bench.loop.step_planned(bench.scheduler, plan, bench.now)
    in_time(bench, lambda: bench.sleep(1.0))
    assert "first row 0 prompt 4" in bench.dumps[0]
    assert "step 0 (row:start+tokens): 0:0+4" in bench.dumps[0]


def test_a_loop_that_hangs_before_planning_is_detected() -> None:
    bench = Bench()
    bench.turn()
    bench.loop.work_arrived(bench.now)
    in_time(bench, lambda: bench.sleep(1.0))


def test_results_that_are_never_collected_are_detected() -> None:
    bench = Bench()
    bench.generate("a")
    bench.settles = False
    in_time(bench)


def test_retract_thrash_is_detected_while_forwards_continue() -> None:
    bench = Bench(Shape(num_pages=16, page_size=4, num_rows=4, chunk=8, cache=False))
    bench.generate("a", prompt="x" * 50)
    state, retractor = bench.scheduler.state, bench.scheduler.planner.retractor

    def thrash() -> None:
        bench.turn()
        for req in list(state.running):
            if req.num_confirmed >= 16:
                retractor.retract([req], RetractReason.TEST, bench.now)

    for _ in range(3):
        thrash()  # reaching this length for the first time is progress
    in_time(bench, thrash)
    assert bench.loop.status.forward_ct > 100


def test_stalled_loading_is_detected_at_its_own_timeout() -> None:
    bench = Bench()
    bench.loop.loading_started("weights")
    assert 100.0 <= bench.seconds_to_the_end(lambda: bench.sleep(1.0)) <= 110.0
    assert "phase loading: weights" in bench.dumps[0]


def test_leaked_rows_are_detected() -> None:
    bench = Bench()
    bench.scheduler.state.free_rows.clear()
    bench.generate("a")
    in_time(bench)
    assert "waits: a: no free row, 0 running" in bench.dumps[0]


def test_admission_that_always_waits_is_detected() -> None:
    bench = Bench()
    planner = bench.scheduler.planner
    bench.scheduler.planner = replace(planner, admitter=replace(planner.admitter, admission=NeverAdmits()))
    bench.generate("a")
    in_time(bench)
    assert "a: needs 1 of 16 usable pages but is not admitted" in bench.dumps[0]


def test_sibling_choices_that_wait_forever_are_detected() -> None:
    bench = Bench()
    bench.world.send(GenerateReq(rids=("a", "b"), prompt=text("tide"), sampling=greedy(4, ignore_eos=True)))
    bench.world.receive()
    bench.loop.work_arrived(bench.now)
    bench.scheduler.state.requests["a"].sibling_choices.clear()
    while "a" in bench.scheduler.state.requests:
        bench.turn()
    in_time(bench)


def test_client_aborts_and_retries_do_not_hide_a_stall() -> None:
    bench = Bench()
    bench.world.allocator.take(16, _Somebody())
    bench.generate("0")
    number = 0

    def come_and_go() -> None:
        nonlocal number
        bench.turn()
        number += 1
        bench.generate(str(number))
        bench.world.send(AbortReq(str(number - 1), "client"))

    in_time(bench, come_and_go)


def test_rejections_do_not_hide_a_stall() -> None:
    bench = Bench(Shape(num_pages=16, page_size=4, num_rows=1, max_queued=1))
    bench.world.allocator.take(16, _Somebody())
    for number in range(3):
        bench.generate(str(number))

    def refuse() -> None:
        bench.turn()
        bench.generate("more")

    in_time(bench, refuse)


# ---------------------------------------------------------------------- no stalls


def test_slow_steps_and_idle_time_are_not_a_stall() -> None:
    bench = Bench(hard_s=1.0)
    for number in range(60):
        bench.generate(str(number), max_tokens=20)
        while bench.world.inbox or not bench.scheduler.idle:
            bench.turn(0.2)
        bench.sleep(6.0 if number % 2 else 0.3)
    assert bench.now - 1000.0 > 400
    assert bench.dumps == []


def test_work_after_long_idle_time_has_the_full_timeout() -> None:
    bench = Bench()
    bench.sleep(1000.0)
    bench.loop.work_arrived(bench.now)
    bench.watchdog.poll()
    bench.sleep(0.95 * TIMEOUT_S)
    assert bench.dumps == []


def test_a_long_first_prefill_is_progress() -> None:
    bench = Bench(Shape(num_pages=600, page_size=4, num_rows=4, chunk=8))
    bench.generate("a", prompt="x" * 2000)
    started = bench.now
    while not bench.scheduler.idle or bench.world.inbox:
        bench.turn(0.2)
    assert bench.now - started > 3 * TIMEOUT_S
    assert bench.dumps == []


def test_suspended_time_is_not_a_stall() -> None:
    bench = Bench()
    bench.generate("a", max_tokens=30)
    for _ in range(5):
        bench.turn()
    bench.now += 3600.0  # neither loop nor watchdog runs
    bench.watchdog.poll()
    bench.until_idle()
    assert bench.dumps == []


def test_a_stall_before_and_after_a_suspension_is_detected() -> None:
    bench = Bench()
    bench.loop.work_arrived(bench.now)
    bench.sleep(TIMEOUT_S / 2)
    bench.now += 3600.0
    bench.poll_due = bench.now
    assert bench.seconds_to_the_end(lambda: bench.sleep(1.0)) <= 0.6 * TIMEOUT_S


def test_loading_longer_than_the_serving_timeout_is_not_a_stall() -> None:
    bench = Bench()
    for part in ("weights", "kernels"):
        bench.loop.loading_started(part)
        bench.sleep(4 * TIMEOUT_S)
    bench.loop.serving_started()
    bench.sleep(4 * TIMEOUT_S)
    assert bench.dumps == []


def test_a_long_queue_beside_running_requests_is_not_a_stall() -> None:
    bench = Bench(Shape(num_pages=200, page_size=4, num_rows=1))
    for number in range(3):
        bench.generate(str(number), max_tokens=300)
    bench.until_idle()
    assert bench.dumps == []


# ---------------------------------------------------------------------- soft, alarms, heartbeats


def test_the_soft_watchdog_dumps_at_doubling_intervals() -> None:
    bench = Bench(soft_s=1.0)
    bench.world.allocator.take(16, _Somebody())
    bench.generate("a")
    bench.seconds_to_the_end()
    *soft, hard = bench.dumps
    assert ["soft watchdog" in dump for dump in soft] == [True] * 4  # after 1, 2, 4 and 8 s
    assert "the scheduler exits" in hard


def test_progress_resets_the_soft_watchdog() -> None:
    bench = Bench(soft_s=1.0)
    held = bench.world.allocator.take(16, _somebody := _Somebody())
    bench.generate("a")
    for _ in range(30):
        bench.turn()
    bench.world.allocator.give(held, _somebody)
    bench.until_idle()
    assert len(bench.dumps) == 1


def test_waiting_without_admission_logs_reasons_at_doubling_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(hard_s=100.0)
    bench.world.allocator.take(16, _Somebody())
    bench.generate("a")
    with caplog.at_level(logging.WARNING):
        while bench.now < 1000.0 + 8 * ALARM_S:
            bench.turn()
    lines = [record.getMessage() for record in caplog.records if "no request was admitted" in record.getMessage()]
    assert len(lines) == 3  # after 1, 2 and 4 times ALARM_S
    assert lines[0] == "no request was admitted for 3 s: 1 waiting, 0 running; a: needs 1 pages and 0 are usable"
    assert bench.scheduler.state.metrics.totals["admission_alarms_total"] == 3


def test_heartbeats_report_running_blocked_and_idle() -> None:
    bench = Bench(hard_s=100.0)

    def beat() -> tuple[str, str, float]:
        heartbeat = bench.loop.heartbeat(bench.scheduler, 7, bench.now)
        assert (heartbeat.source, heartbeat.handled) == ("scheduler", 7)
        return heartbeat.state, heartbeat.reason, heartbeat.stalled_s

    bench.turn()
    assert beat() == ("idle", "", 0.0)
    bench.generate("a", max_tokens=30)
    bench.turn()
    assert beat()[:2] == ("running", "")
    bench.until_idle()
    assert beat() == ("idle", "", 0.0)
    bench.world.pool.tree_cache.evict(16)
    held = bench.world.allocator.take(16, _somebody := _Somebody())
    bench.generate("b")
    bench.turn()
    assert beat()[:2] == ("blocked", "")
    while bench.loop.heartbeat(bench.scheduler, 7, bench.now).stalled_s < ALARM_S + 0.1:
        bench.turn()
    assert beat()[:2] == ("blocked", "b: needs 1 pages and 0 are usable")
    bench.world.allocator.give(held, _somebody)
    bench.until_idle()
    assert beat() == ("idle", "", 0.0)


# ---------------------------------------------------------------------- the dump


def crowded() -> Bench:
    """More than fifty of everything, with long names."""
    bench = Bench(Shape(num_pages=4096, page_size=4, num_rows=80, chunk=4096))
    for number in range(400):
        bench.generate(f"{number:03}-" + "n" * 100, prompt="secret", max_tokens=8)
    bench.loop.work_arrived(bench.now)
    bench.world.receive()
    plan = bench.scheduler.next_step(bench.now)
    assert plan is not None
    bench.loop.step_planned(bench.scheduler, plan, bench.now)
    victim = PressureVictim("v" * 2000, 1, 2, 4, 3, 1)
    event = PressureEvent(7, "memory", [victim] * 50, 0, 16, 0.5, 0.6, 1, 2, aborted="gone")
    bench.loop.iteration_ended(bench.scheduler, Output(events=[event] * 30), bench.now)
    return bench


def test_the_dump_has_every_section_and_no_prompt_text() -> None:
    bench = Bench()
    for number in range(6):
        bench.generate(str(number), prompt="secret", max_tokens=4)
    bench.turn()
    bench.watchdog.dump("asked for")
    (dump,) = bench.dumps
    for part in (
        "==== asked for ====",
        "phase serving, running, forward_ct 1, progress 1",
        "accounting of pool full (pages): available",
        "balanced",
        "page moves (oldest first):",
        "the free list -> request 0: pages ",
        "free rows 0, new_token_ratio",
        "step 0 (row:start+tokens)",
        "batch of 4, the first 4:",
        "0 row 0 prompt 6 outputs 0/4",
        "queue of 2, the first 2:",
        "waits: 4: no free row, 4 running",
        "6 open requests",
        "pressure events",
        "thread MainThread:",
        "in test_the_dump_has_every_section_and_no_prompt_text",
        "==== end of dump ====",
    ):
        assert part in dump, part
    assert "secret" not in dump
    assert "115, 101" not in dump


def test_the_dump_is_bounded() -> None:
    bench = crowded()
    bench.watchdog.dump("asked for")
    (dump,) = bench.dumps
    assert len(dump.encode()) <= MAX_BYTES
    assert dump.endswith("==== end of dump ====\n")
    assert "batch of 80, the first 50:" in dump
    assert "queue of 320, the first 50:" in dump


def test_the_dump_names_the_pool_that_does_not_balance() -> None:
    bench = Bench()
    bench.world.pool.uncached += 1
    shown = render_dump("t", LoopStatus("serving", Activity.IDLE), take_snapshot(bench.scheduler, None), [], [])
    assert "NOT BALANCED: 17 accounted for" in shown
    assert "no step has been submitted to the runner yet" in shown


def test_the_dump_includes_the_host_tier() -> None:
    bench = Bench(Shape(num_pages=16, page_size=4, num_rows=4, host_pages=8))
    assert "accounting of pool host" in render_dump(
        "t", LoopStatus("serving", Activity.IDLE), take_snapshot(bench.scheduler, None), [], ["line\x1b[2J"]
    )


def test_an_error_in_the_dump_does_not_keep_the_process_alive() -> None:
    bench = Bench()
    bench.loop.snapshot = None  # type: ignore[assignment]
    bench.loop.work_arrived(bench.now)
    assert bench.seconds_to_the_end(lambda: bench.sleep(1.0)) <= 1.1 * TIMEOUT_S
    assert "the dump itself failed" in bench.dumps[0]


def test_stacks_name_every_thread() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stand_here() -> None:
        entered.set()
        leave.wait(20)

    thread = threading.Thread(target=stand_here, name="stander")
    thread.start()
    entered.wait(20)
    lines = thread_stacks()
    leave.set()
    thread.join()
    assert "thread stander:" in lines
    assert any(line.endswith("in stand_here") for line in lines)


def test_dumps_are_written_to_stderr_and_to_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    watchdog = create_scheduler_watchdog(WatchdogConfig(watchdog_timeout=5.0), str(tmp_path / "scheduler.dump"))
    watchdog.dump("asked for")
    assert (tmp_path / "scheduler.dump").read_text() == capfd.readouterr().err
    assert watchdog.poll_s == 0.05


def test_a_gap_counts_as_at_most_the_longest_gap() -> None:
    now = 0.0
    clock = SuspendAwareClock(lambda: now, 2.0)
    now = 1.0
    assert (clock(), clock.advance()) == (1.0, 1.0)
    now = 100.0
    assert (clock(), clock(), clock.advance()) == (3.0, 3.0, 3.0)
    now = 101.0
    assert clock() == 4.0


def test_a_requested_snapshot_is_taken_in_the_next_iteration_also_when_idle() -> None:
    bench = Bench()
    bench.until_idle()
    bench.world.allocator.take(3, _Somebody())
    bench.loop.is_fresh.clear()
    bench.turn()
    assert bench.loop.is_fresh.is_set()
    assert bench.loop.snapshot.accounting[0][1].available == 13


def test_an_abort_for_memory_is_progress_and_an_event_in_the_dump() -> None:
    bench = Bench(Shape(num_pages=4, page_size=4, num_rows=4))
    bench.generate("a", prompt="x" * 12, max_tokens=100)
    bench.until_idle()
    counted = bench.loop.status.progress
    assert counted >= 4
    bench.watchdog.dump("asked for")
    assert "last 1 pressure events" in bench.dumps[0]
    assert "aborted a" in bench.dumps[0]


def test_a_request_larger_than_the_pool_has_that_reason() -> None:
    bench = Bench()
    bench.generate("a")
    bench.world.receive()
    bench.scheduler.state.requests["a"].known.extend(range(100))
    bench.loop.is_fresh.clear()
    bench.loop.iteration_ended(bench.scheduler, Output(), bench.now)
    assert bench.loop.snapshot.reasons == ("a: needs 26 pages, but the whole pool has 16",)


def test_a_pause_is_not_a_stall_and_resuming_restarts_the_timeout() -> None:
    bench = Bench()
    bench.generate("a", max_tokens=40)
    for _ in range(5):
        bench.turn()
    bench.world.send(ControlReq("p", "pause"))
    for _ in range(int(20 * TIMEOUT_S / 0.05)):
        bench.turn()
    beat = bench.loop.heartbeat(bench.scheduler, 0, bench.now)
    assert (beat.state, beat.reason, beat.stalled_s) == ("paused", "", 0.0)
    assert bench.dumps == []
    bench.world.send(ControlReq("c", "continue"))
    bench.until_idle()
    assert bench.dumps == []
    assert bench.loop.status.activity is Activity.IDLE
