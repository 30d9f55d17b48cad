"""The log about names that clients choose is bounded per call and over time."""

from __future__ import annotations

import pytest

from ebbtide.server.metrics.name_log import MAX_CHARS, MAX_NAMES, NameLog


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


def test_each_name_is_logged_once(lines: pytest.LogCaptureFixture) -> None:
    names = NameLog("ignoring fields")
    for sent in (["a", "b"], ["b", "c"], ["a"], []):
        names.report(sent)
    assert lines.messages == ["ignoring fields: 'a', 'b'", "ignoring fields: 'c'"]


def test_many_names_are_counted_in_one_line(lines: pytest.LogCaptureFixture) -> None:
    names = NameLog("ignoring fields")
    for _ in range(2):
        names.report(f"u{number}" for number in range(5000))
    assert lines.messages == [
        "ignoring fields: 'u0', 'u1', 'u2', 'u3', 'u4' and 4995 more",
        "ignoring fields: further names will not be logged, because the limit of 100 names is reached",
    ]


def test_the_number_and_size_of_lines_is_bounded(lines: pytest.LogCaptureFixture) -> None:
    names = NameLog("ignoring fields")
    for number in range(10 * MAX_NAMES):
        names.report([f"{number}{'x' * 5000}"])
    assert len(lines.messages) == MAX_NAMES + 1
    assert max(map(len, lines.messages)) < MAX_CHARS + 50
