"""Heartbeats, death and draining, with a fake clock."""

from __future__ import annotations

from ebbtide.config import WatchdogConfig
from ebbtide.messages import Heartbeat
from ebbtide.server.metrics.liveness import Liveness

HEARTBEAT_TIMEOUT_S = 20.0
WATCHDOG_TIMEOUT_S = 300.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def started() -> tuple[Liveness, Clock]:
    clock = Clock()
    liveness = Liveness(clock, WatchdogConfig(WATCHDOG_TIMEOUT_S, heartbeat_timeout=HEARTBEAT_TIMEOUT_S))
    liveness.mark_started()
    return liveness, clock


def test_before_the_start_the_server_is_loading() -> None:
    refusal = Liveness(Clock()).refusal()
    assert refusal is not None
    assert (refusal.status, refusal.code) == (503, "loading")


def test_a_silent_child_is_not_ready_until_its_next_heartbeat() -> None:
    liveness, clock = started()
    clock.now += HEARTBEAT_TIMEOUT_S + 1
    liveness.record_heartbeat(Heartbeat("scheduler", 1))
    refusal = liveness.refusal()
    assert refusal is not None
    assert "detokenizer" in refusal.message
    assert liveness.unhealthy_reason() is None
    liveness.record_heartbeat(Heartbeat("detokenizer", 1))
    assert liveness.refusal() is None


def test_a_child_silent_for_the_watchdog_timeout_is_unhealthy() -> None:
    liveness, clock = started()
    clock.now += WATCHDOG_TIMEOUT_S + 1
    liveness.record_heartbeat(Heartbeat("detokenizer", 1))
    assert "scheduler" in (liveness.unhealthy_reason() or "")


def test_a_heartbeat_of_an_unknown_source_is_ignored() -> None:
    liveness, clock = started()
    clock.now += HEARTBEAT_TIMEOUT_S + 1
    liveness.record_heartbeat(Heartbeat("stranger", 1))
    assert liveness.refusal() is not None


def test_a_dead_child_stays_dead() -> None:
    liveness, _ = started()
    liveness.mark_dead("scheduler")
    liveness.record_heartbeat(Heartbeat("scheduler", 1))
    assert "scheduler" in (liveness.unhealthy_reason() or "")
    assert liveness.refusal() is not None


def test_a_silent_child_times_out_shortly_after_the_watchdog_timeout() -> None:
    liveness, clock = started()
    for _ in range(int(WATCHDOG_TIMEOUT_S)):
        clock.now += 1.0
        liveness.record_heartbeat(Heartbeat("scheduler", 1))
    assert liveness.timed_out_child() is None
    clock.now += 0.1 * WATCHDOG_TIMEOUT_S
    assert liveness.timed_out_child() == "detokenizer"
    liveness.mark_dead("detokenizer")
    assert liveness.timed_out_child() is None


def test_a_short_watchdog_timeout_leaves_the_child_s_own_watchdog_a_second_to_act_first() -> None:
    clock = Clock()
    liveness = Liveness(clock, WatchdogConfig(3.0, heartbeat_timeout=1.0))
    liveness.mark_started()
    clock.now += 3.9
    assert liveness.timed_out_child() is None
    clock.now += 0.2
    assert liveness.timed_out_child() == "scheduler"


def test_a_scheduler_blocked_for_long_accepts_no_new_requests() -> None:
    liveness, clock = started()
    liveness.record_heartbeat(Heartbeat("scheduler", 1, "blocked", "", 1.0))
    assert liveness.refusal() is None
    clock.now += 0.5
    assert liveness.stalled_s == 1.5
    liveness.record_heartbeat(Heartbeat("scheduler", 1, "blocked", "a: needs 3 pages and 0 are usable", 31.0))
    refusal = liveness.refusal()
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("engine_blocked", 5)
    assert "a: needs 3 pages" in refusal.message
    assert liveness.unhealthy_reason() is None
    liveness.record_heartbeat(Heartbeat("scheduler", 1, "running", "", 0.1))
    assert liveness.refusal() is None
    liveness.record_heartbeat(Heartbeat("scheduler", 1))
    assert liveness.stalled_s == 0.0


def test_a_restart_is_alive_but_not_ready_until_the_children_are() -> None:
    liveness, clock = started()
    liveness.mark_dead("scheduler")
    assert liveness.unhealthy_reason() is not None
    liveness.mark_restarting()
    clock.now += 2 * WATCHDOG_TIMEOUT_S  # loading has its own timeout
    assert (liveness.unhealthy_reason(), liveness.timed_out_child()) == (None, None)
    refusal = liveness.refusal()
    assert refusal is not None
    assert (refusal.status, refusal.code) == (503, "engine_restarting")
    liveness.mark_started()
    assert liveness.refusal() is None


def test_its_description_names_both_children_and_says_whether_it_is_ready() -> None:
    liveness, clock = started()
    clock.now += HEARTBEAT_TIMEOUT_S + 1
    lines = liveness.describe()
    assert lines[:2] == ["scheduler: last heartbeat 21.0 s ago", "scheduler reported: nothing yet"]
    assert lines[2] == "detokenizer: last heartbeat 21.0 s ago"
    assert lines[-1] == "not ready: The scheduler process has been silent for 21 s."


def test_its_description_has_the_last_status_of_each_child() -> None:
    liveness, clock = started()
    liveness.record_heartbeat(Heartbeat("scheduler", 7, "blocked", "a: no free row, 3 run", 31.0, 4))
    liveness.record_heartbeat(Heartbeat("detokenizer", 9, "running", num_requests=3))
    clock.now += 2.0
    assert liveness.describe()[:5] == [
        "scheduler: last heartbeat 2.0 s ago",
        "scheduler reported: blocked, 7 messages handled, 4 requests held, a: no free row, 3 run",
        "detokenizer: last heartbeat 2.0 s ago",
        "detokenizer reported: running, 9 messages handled, 3 requests held",
        "no progress for 33.0 s",
    ]
