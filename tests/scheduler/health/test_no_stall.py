"""The watchdog on a fake clock: slow work, idle time and suspensions are not reported as stalls."""

from __future__ import annotations

from ebbtide.messages import ControlReq
from ebbtide.runtime.suspend_aware_clock import SuspendAwareClock
from ebbtide.scheduler.health.progress import Activity

from ..world import Shape
from .watchdog_bench import TIMEOUT_S, Bench


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


def test_a_gap_counts_as_at_most_the_longest_gap() -> None:
    now = 0.0
    clock = SuspendAwareClock(lambda: now, 2.0)
    now = 1.0
    assert (clock(), clock.advance()) == (1.0, 1.0)
    now = 100.0
    assert (clock(), clock(), clock.advance()) == (3.0, 3.0, 3.0)
    now = 101.0
    assert clock() == 4.0


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
