"""The statistics that several commands use."""

from __future__ import annotations

from ebbtide.commands.results import percentile


def test_a_percentile_is_between_its_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 100) == 4.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 99) == 0.0
