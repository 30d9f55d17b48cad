"""The dump of the scheduler: its sections, its size, and what it must not contain."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ebbtide.config import WatchdogConfig
from ebbtide.messages import PressureEvent, PressureVictim
from ebbtide.runtime.stacks import thread_stacks
from ebbtide.scheduler.health.dump import MAX_BYTES, render_dump, take_snapshot
from ebbtide.scheduler.health.progress import Activity, LoopStatus
from ebbtide.scheduler.health.watchdog import create_scheduler_watchdog
from ebbtide.scheduler.outbox import Output

from ..world import Shape
from .watchdog_bench import TIMEOUT_S, Bench, Somebody


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


def test_a_requested_snapshot_is_taken_in_the_next_iteration_also_when_idle() -> None:
    bench = Bench()
    bench.until_idle()
    bench.world.allocator.take(3, Somebody())
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
