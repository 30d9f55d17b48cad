"""The line about the load while there is work."""

from __future__ import annotations

import logging

import pytest

from ebbtide.messages import Stats
from ebbtide.server.metrics.load_log import LoadLog
from ebbtide.server.metrics.metrics import FrontMetrics


class Load:
    """Snapshots of a scheduler on a clock of the test."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self.now = 0.0
        self.metrics = FrontMetrics("sim")
        self.log = LoadLog(self.metrics, lambda: self.now, interval_s)

    def at(self, now: float, running: int, generated: int, **more: int) -> None:
        self.now = now
        gauges = (
            {"num_running_reqs": running, "num_queue_reqs": 2, "token_usage": 0.5}
            if running
            else {
                "num_running_reqs": 0,
                "num_queue_reqs": 0,
            }
        )
        self.metrics.apply_stats(Stats(dict(gauges), {"generation_tokens_total": generated, **more}, {}))
        self.log.on_snapshot()


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_rates_are_those_of_the_interval(caplog: pytest.LogCaptureFixture) -> None:
    load = Load()
    load.at(100, 3, 0)
    load.at(105, 3, 100)
    load.at(110, 3, 400, prompt_tokens_total=200, cached_tokens_total=50, num_retracted_requests_total=1)
    assert caplog.messages == [
        "3 running, 2 queued (0 retracted); 40 tokens/s out, 20 tokens/s in; pool 50 %, cache hits 25 %, 1 retractions"
    ]
    load.at(121, 3, 840)
    assert caplog.messages[1].split("; ")[1] == "40 tokens/s out, 0 tokens/s in"


def test_idle_time_has_no_line_and_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    load = Load()
    for second in range(0, 100, 5):
        load.at(second, 0, 0)
    load.at(1000, 1, 0)
    load.at(1010, 1, 50)
    assert [message.split("; ")[1] for message in caplog.messages] == ["5 tokens/s out, 0 tokens/s in"]


def test_interval_0_turns_the_line_off(caplog: pytest.LogCaptureFixture) -> None:
    load = Load(interval_s=0)
    load.at(1, 1, 0)
    load.at(100, 1, 50)
    assert caplog.messages == []
