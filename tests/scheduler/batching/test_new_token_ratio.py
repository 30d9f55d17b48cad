from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.new_token_ratio import NewTokenRatio, ReportedRatio

from ..make import request


def test_the_ratio_starts_at_0_7_and_decays_to_a_seventh_of_that_in_600_steps() -> None:
    ratio = NewTokenRatio()
    assert ratio.value == pytest.approx(0.7)
    for _ in range(599):
        ratio.decay()
    assert ratio.value > ratio.minimum
    for _ in range(5):
        ratio.decay()
    assert ratio.value == pytest.approx(0.098)


def test_conservativeness_scales_the_ratio_up_to_one() -> None:
    assert NewTokenRatio(0.5).value == pytest.approx(0.35)
    assert NewTokenRatio(10).value == 1.0


@pytest.mark.parametrize("survivors", [[], [request(outputs=1, max_tokens=4096)] * 30])
def test_pressure_never_lowers_the_ratio(survivors: list[object]) -> None:
    ratio = NewTokenRatio()
    ratio.raise_after_retract(survivors)  # type: ignore[arg-type]
    assert ratio.value == pytest.approx(0.7)


def test_pressure_raises_the_ratio_to_the_need_of_the_remaining_requests_and_never_over_one() -> None:
    ratio = NewTokenRatio(0.2)
    ratio.raise_after_retract([request(outputs=30, max_tokens=99)])
    assert ratio.value == pytest.approx(0.5)
    ratio.raise_after_retract([request(outputs=99, max_tokens=100)])
    assert ratio.value == 1.0


def test_an_idle_scheduler_resets_the_ratio() -> None:
    ratio = NewTokenRatio()
    ratio.decay()
    ratio.reset()
    assert ratio.value == ratio.initial


def test_a_retraction_raises_the_reported_ratio_until_the_next_report() -> None:
    ratio = ReportedRatio()
    ratio.report(50.0, 200.0)
    ratio.decay()
    assert ratio.value == 0.25
    ratio.raise_after_retract([request(outputs=30, max_tokens=99)])
    assert ratio.value == pytest.approx(0.5)
    ratio.report(10.0, 200.0)
    assert ratio.value == pytest.approx(0.05)


@pytest.mark.parametrize(("reserved", "rest", "value"), [(-5.0, 100.0, 0.0), (300.0, 100.0, 1.0), (5.0, 0.0, 0.7)])
def test_a_reported_ratio_is_a_share(reserved: float, rest: float, value: float) -> None:
    ratio = ReportedRatio()
    ratio.report(reserved, rest)
    assert ratio.value == pytest.approx(value)
