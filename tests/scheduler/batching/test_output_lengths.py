"""The estimated distribution of output lengths."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from ebbtide.scheduler.batching.output_lengths import EDGES, HALF_LIFE, OutputLengths, bin_of, kind_of, survival

from ..make import request

ANY = (-1, -1)


def reaching(lengths: OutputLengths, length: int, kind: tuple[int, int] = ANY) -> float:
    """The estimated share of requests whose outputs are longer than ``length``."""
    return survival(lengths.curve(kind), [length])[0]


def test_by_default_half_of_all_outputs_exceed_160_tokens() -> None:
    assert reaching(OutputLengths(), 160) == pytest.approx(0.5, abs=0.02)
    assert 0.8 < reaching(OutputLengths(), 45) < 0.95
    assert 0 < reaching(OutputLengths(), 8000) < 0.02


def test_the_estimate_follows_the_completed_outputs() -> None:
    rng = random.Random(0)
    sample = [round(rng.lognormvariate(5.0, 0.8)) for _ in range(600)]
    lengths = OutputLengths()
    for length in sample:
        lengths.add(length)
    for length in (20, 90, 181, 362, 1024):
        share = sum(one > length for one in sample) / len(sample)
        assert reaching(lengths, length) == pytest.approx(share, abs=0.06)


def test_a_curve_never_rises() -> None:
    lengths = OutputLengths()
    for length in (1, 5000, 3, 70, 70, 900):
        lengths.add(length)
        assert all(before >= after >= 0 for before, after in pairwise(lengths.curve(ANY)))


def test_old_completions_lose_their_weight() -> None:
    lengths = OutputLengths()
    for _ in range(300):
        lengths.add(2000)
    for _ in range(6 * HALF_LIFE):
        lengths.add(20)
    assert reaching(lengths, 1000) < 0.01


def test_weights_stay_in_range_for_any_number_of_completions() -> None:
    lengths = OutputLengths()
    for _ in range(60 * HALF_LIFE):
        lengths.add(100)
    assert 1e-9 < lengths._weight < 1e7
    assert reaching(lengths, 90) > 0.95
    assert reaching(lengths, 200) < 0.05


def test_running_requests_count_with_their_outputs_so_far() -> None:
    """Short outputs end first. If running requests did not count, a new server would expect only short outputs."""
    lengths, other = OutputLengths(), OutputLengths()
    for _ in range(8):
        lengths.add(20)
        other.add(20)
    for _ in range(24):
        lengths.moved(ANY, None, bin_of(300))
    assert reaching(lengths, 200) > 2 * reaching(other, 200)
    for _ in range(24):
        lengths.moved(ANY, bin_of(300), None)
        lengths.add(20)
        other.add(20)
    assert reaching(lengths, 200) == reaching(other, 200)


def test_an_output_that_was_cut_off_could_have_been_longer() -> None:
    cut, ended = OutputLengths(), OutputLengths()
    kind = kind_of(request(max_tokens=100, outputs=0))
    for _ in range(50):
        cut.ended(request(max_tokens=100, outputs=100), finished=True)
        ended.ended(request(max_tokens=100, outputs=99), finished=True)
    assert reaching(cut, 128, kind) > 0.5 > reaching(ended, 128, kind)
    left = OutputLengths()
    for _ in range(50):
        left.ended(request(max_tokens=100, outputs=50), finished=False)
    assert reaching(left, 64, kind) > 0.5


def test_kinds_of_requests_are_distinguished_and_a_new_kind_starts_with_the_estimate_for_all() -> None:
    lengths = OutputLengths()
    few, many = request(max_tokens=64, outputs=30), request(max_tokens=4096, outputs=2000)
    for _ in range(100):
        lengths.ended(few, finished=True)
        lengths.ended(many, finished=True)
    assert reaching(lengths, 500, kind_of(few)) < 0.1 < 0.9 < reaching(lengths, 500, kind_of(many))
    new = kind_of(request(max_tokens=700, prompt=3000))
    assert reaching(lengths, 500, new) == pytest.approx(reaching(lengths, 500), abs=0.05)


def test_bins_cover_all_lengths() -> None:
    assert [bin_of(length) for length in (0, 7, 8, 31, 32, 10**9)] == [0, 0, 1, 3, 4, len(EDGES) - 1]
    assert list(EDGES) == sorted(set(EDGES))


def test_long_outputs_of_running_requests_show_before_any_request_ends() -> None:
    lengths = OutputLengths()
    kind = kind_of(request("a"))
    before = reaching(lengths, 1024, kind)
    for number in range(1, bin_of(1024) + 1):
        for _ in range(20):
            lengths.moved(kind, None if number == 1 else number - 1, number)
    assert reaching(lengths, 1024, kind) > 0.5 > 0.1 > before
