"""Prompts, lengths and arrivals are determined by a seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ebbtide.commands.bench_load.workload import WORDS, Calibration, Lengths, Workload, make_jobs

ONE = Calibration(tokens_per_word=1.0, overhead=0.0)


def workload(**changes: object) -> Workload:
    usual = Workload(num_requests=50, prompt_len=Lengths(10, 30), output_len=Lengths(4, 4), shared_prefix=0.0, seed=1)
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_words_are_distinct_and_plain() -> None:
    assert len(set(WORDS)) == len(WORDS) > 100
    assert all(word.isascii() and word.isalpha() for word in WORDS)


def test_lengths_are_read_as_one_number_or_a_range() -> None:
    assert Lengths.parse("7") == Lengths(7, 7)
    assert Lengths.parse("7:9") == Lengths(7, 9)
    assert [str(Lengths.parse(text)) for text in ("7", "7:9")] == ["7", "7:9"]


@pytest.mark.parametrize("text", ["", "0", "-3", "a", "1:b", "5:4", "1:2:3", "5:"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Lengths.parse(text)


def test_calibration_is_the_line_through_two_prompts() -> None:
    line = Calibration.between((10, 35), (30, 75))
    assert line == Calibration(tokens_per_word=2.0, overhead=15.0)
    assert line.num_words(115) == 50
    assert line.num_words(3) == 1


def test_arrivals_are_poisson_at_the_asked_rate() -> None:
    jobs = make_jobs(workload(num_requests=4000, request_rate=50.0), ONE)
    times = [job.at_s for job in jobs]
    assert times[0] == 0.0
    assert times == sorted(times)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    # The standard deviation of exponential gaps equals their mean; that of a constant pace would be 0.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.15)


def test_pace_does_not_change_what_is_sent() -> None:
    closed, slow, fast = (make_jobs(workload(request_rate=rate), ONE) for rate in (None, 1.0, 100.0))
    assert [job.prompt for job in closed] == [job.prompt for job in slow] == [job.prompt for job in fast]


def test_no_pace_means_no_waiting() -> None:
    assert {job.at_s for job in make_jobs(workload(), ONE)} == {0.0}


def test_wholly_shared_prompts_differ_only_in_length() -> None:
    prompts = [job.prompt for job in make_jobs(workload(shared_prefix=1.0), ONE)]
    longest = max(prompts, key=len)
    assert all(longest.startswith(prompt) for prompt in prompts)


def test_another_stream_shares_only_the_prefix() -> None:
    measured, warmup = (make_jobs(workload(shared_prefix=0.5), ONE, stream=name) for name in ("measured", "warmup"))
    assert measured[0].prompt.split()[:5] == warmup[0].prompt.split()[:5]
    assert not {job.prompt for job in measured} & {job.prompt for job in warmup}
