"""The report's numbers for given outcomes."""

from __future__ import annotations

import pytest

from ebbtide.commands.bench_load.client import Outcome
from ebbtide.commands.bench_load.drive import Run
from ebbtide.commands.bench_load.report import spread, summarize


def outcome(*token_times: float, tokens: int | None = None, error: str = "", started: float = 0.0) -> Outcome:
    ended = (token_times[-1] if token_times else started) + 0.5
    return Outcome(started, ended, list(token_times), output_tokens=tokens, error=error, example=f"{error} happened")


def test_spread_is_in_milliseconds_and_needs_no_order() -> None:
    assert spread([0.003, 0.001, 0.002]) == {"mean": 2.0, "p50": 2.0, "p90": 2.8, "p99": 2.98}
    assert spread([]) is None


def test_latencies_of_one_answer() -> None:
    report = summarize(Run([outcome(2.0, 3.0, 5.0, started=1.0)], duration_s=10.0, client_cpu_s=0.1))
    assert report.ttft_ms is not None
    assert report.ttft_ms["p50"] == 1000
    assert report.itl_ms is not None
    assert report.itl_ms["mean"] == 1500
    assert report.tpot_ms is not None
    assert report.tpot_ms["mean"] == 1500
    assert report.e2e_ms is not None
    assert report.e2e_ms["p99"] == 4500
    assert report.totals["client_cpu_share"] == 0.01


def test_chunks_of_several_tokens_are_spread_over_them() -> None:
    # Two chunks, a second apart, that carry nine tokens.
    report = summarize(Run([outcome(1.0, 2.0, tokens=9)], duration_s=3.0, client_cpu_s=0.0))
    assert report.tpot_ms is not None
    assert report.tpot_ms["mean"] == 125
    assert report.totals["output_tokens"] == 9


def test_failed_requests_are_counted_only_as_errors() -> None:
    outcomes = [outcome(1.0, 2.0), outcome(0.1, error="timeout"), outcome(error="HTTP 429"), outcome(error="HTTP 429")]
    report = summarize(Run(outcomes, duration_s=4.0, client_cpu_s=0.0))
    assert (report.totals["completed"], report.totals["failed"]) == (1, 3)
    assert report.totals["requests_per_s"] == 0.25
    assert report.totals["output_tokens"] == 2
    assert [(error["kind"], error["count"]) for error in report.errors] == [("HTTP 429", 2), ("timeout", 1)]
    assert report.errors[1]["example"] == "timeout happened"


@pytest.mark.parametrize("tokens", [0, 1])
def test_answer_of_at_most_one_token_has_no_time_per_token(tokens: int) -> None:
    times = [1.0] * tokens
    report = summarize(Run([outcome(*times, tokens=tokens)], duration_s=2.0, client_cpu_s=0.0))
    assert report.tpot_ms is None
    assert report.itl_ms is None
    assert report.totals["completed"] == 1
