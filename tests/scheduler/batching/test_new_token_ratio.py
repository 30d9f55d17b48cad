from __future__ import annotations

import pytest

from ebbtide.scheduler.batching.new_token_ratio import NewTokenRatio, OutputLengths

from ..make import request


def test_it_starts_at_seven_tenths_and_decays_to_a_seventh_of_that_in_600_steps() -> None:
    ratio = NewTokenRatio()
    assert ratio.value == pytest.approx(0.7)
    for _ in range(599):
        ratio.decay()
    assert ratio.value > ratio.minimum
    for _ in range(5):
        ratio.decay()
    assert ratio.value == pytest.approx(0.098)


def test_conservativeness_scales_it_up_to_one() -> None:
    assert NewTokenRatio(0.5).value == pytest.approx(0.35)
    assert NewTokenRatio(10).value == 1.0


@pytest.mark.parametrize("survivors", [[], [request(outputs=1, max_tokens=4096)] * 30])
def test_pressure_never_lowers_it(survivors: list[object]) -> None:
    ratio = NewTokenRatio()
    ratio.raise_after_retract(survivors)  # type: ignore[arg-type]
    assert ratio.value == pytest.approx(0.7)


def test_pressure_raises_it_to_the_survivors_needs_and_never_over_one() -> None:
    ratio = NewTokenRatio(0.2)
    ratio.raise_after_retract([request(outputs=30, max_tokens=99)])
    assert ratio.value == pytest.approx(0.5)
    ratio.raise_after_retract([request(outputs=99, max_tokens=100)])
    assert ratio.value == 1.0


def test_idleness_resets_it() -> None:
    ratio = NewTokenRatio()
    ratio.decay()
    ratio.reset()
    assert ratio.value == ratio.initial


def test_expected_length_is_512_until_something_has_finished() -> None:
    assert OutputLengths().expected == 512


def test_expected_length_is_the_ninetieth_percentile_of_the_latest() -> None:
    lengths = OutputLengths(window=10)
    for length in [10_000, *range(1, 11)]:
        lengths.add(length)
    assert lengths.expected == 10  # the first one has left the window
    for length in [5] * 10:
        lengths.add(length)
    assert lengths.expected == 5
