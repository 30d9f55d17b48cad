"""The soft watchdog, the admission alarm and the heartbeats, on a fake clock."""

from __future__ import annotations

import logging

import pytest

from .watchdog_bench import ALARM_S, Bench, Somebody


def test_the_soft_watchdog_dumps_at_doubling_intervals() -> None:
    bench = Bench(soft_s=1.0)
    bench.world.allocator.take(16, Somebody())
    bench.generate("a")
    bench.seconds_to_the_end()
    *soft, hard = bench.dumps
    assert ["soft watchdog" in dump for dump in soft] == [True] * 4  # after 1, 2, 4 and 8 s
    assert "the scheduler exits" in hard


def test_progress_resets_the_soft_watchdog() -> None:
    bench = Bench(soft_s=1.0)
    held = bench.world.allocator.take(16, _somebody := Somebody())
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
    bench.world.allocator.take(16, Somebody())
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
    held = bench.world.allocator.take(16, _somebody := Somebody())
    bench.generate("b")
    bench.turn()
    assert beat()[:2] == ("blocked", "")
    while bench.loop.heartbeat(bench.scheduler, 7, bench.now).stalled_s < ALARM_S + 0.1:
        bench.turn()
    assert beat()[:2] == ("blocked", "b: needs 1 pages and 0 are usable")
    bench.world.allocator.give(held, _somebody)
    bench.until_idle()
    assert beat() == ("idle", "", 0.0)
