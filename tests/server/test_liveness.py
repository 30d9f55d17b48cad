"""Heartbeats, death and draining by a clock of the test's own."""

from __future__ import annotations

from ebbtide.server.liveness import HEARTBEAT_TIMEOUT_S, WATCHDOG_TIMEOUT_S, Liveness


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def started() -> tuple[Liveness, Clock]:
    clock = Clock()
    liveness = Liveness(clock)
    liveness.started()
    return liveness, clock


def test_before_the_start_it_loads() -> None:
    refusal = Liveness(Clock()).refusal()
    assert refusal is not None
    assert (refusal.status, refusal.code) == (503, "loading")


def test_a_silent_child_turns_readiness_off_and_a_beat_turns_it_on_again() -> None:
    liveness, clock = started()
    clock.now += HEARTBEAT_TIMEOUT_S + 1
    liveness.beat("scheduler")
    refusal = liveness.refusal()
    assert refusal is not None
    assert "detokenizer" in refusal.message
    assert liveness.ill() is None
    liveness.beat("detokenizer")
    assert liveness.refusal() is None


def test_a_child_silent_for_the_watchdogs_time_is_ill() -> None:
    liveness, clock = started()
    clock.now += WATCHDOG_TIMEOUT_S + 1
    liveness.beat("detokenizer")
    assert "scheduler" in (liveness.ill() or "")


def test_an_unknown_source_counts_for_nobody() -> None:
    liveness, clock = started()
    clock.now += HEARTBEAT_TIMEOUT_S + 1
    liveness.beat("stranger")
    assert liveness.refusal() is not None


def test_death_is_for_good() -> None:
    liveness, _ = started()
    liveness.died("scheduler")
    liveness.beat("scheduler")
    assert "scheduler" in (liveness.ill() or "")
    assert liveness.refusal() is not None
