"""Trace files: the fields that a line may have, and the message for an invalid line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebbtide.commands.simulation.trace import TraceRequest, read_trace
from ebbtide.errors import StartupError

GOOD = '{"arrival_s": 1.5, "prompt_len": 10, "output_len": 4}'


def read(tmp_path: Path, text: str) -> list[TraceRequest]:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    return read_trace(path)


def test_a_line_may_omit_optional_fields(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == [TraceRequest(1.5, 10, 4)]


def test_a_line_may_have_all_fields(tmp_path: Path) -> None:
    line = (
        '{"arrival_s": 0, "prompt_len": 10, "output_len": 4, "prefix_id": "a", "prefix_len": 6, '
        '"max_tokens": 3, "priority": 2}'
    )
    (request,) = read(tmp_path, line)
    assert request == TraceRequest(0, 10, 4, "a", 6, 3, 2)
    assert request.num_outputs == 3


def test_requests_are_sorted_by_arrival_and_empty_lines_are_ignored(tmp_path: Path) -> None:
    early = '{"arrival_s": 0.5, "prompt_len": 3, "output_len": 1}'
    assert [request.prompt_len for request in read(tmp_path, f"{GOOD}\n\n{early}\n")] == [3, 10]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "malformed"),
        ('{"arrival_s": 0, "prompt_len": 10}', "output_len"),
        ('{"arrival_s": 0, "prompt_len": "ten", "output_len": 1}', "prompt_len"),
        ('{"arrival_s": 0, "prompt_len": 0, "output_len": 1}', "prompt_len"),
        ('{"arrival_s": -1, "prompt_len": 1, "output_len": 1}', "arrival_s"),
        ('{"arrival_s": 0, "prompt_len": 1, "output_len": 1, "outputlen": 1}', "outputlen"),
        ('{"arrival_s": 0, "prompt_len": 4, "output_len": 1, "prefix_id": 1, "prefix_len": 5}', "prefix_len 5"),
        ('{"arrival_s": 0, "prompt_len": 4, "output_len": 1, "prefix_len": 3}', "prefix_id"),
    ],
)
def test_a_wrong_line_is_one_sentence_with_its_number(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(StartupError) as caught:
        read(tmp_path, f"{GOOD}\n{line}\n")
    message = str(caught.value)
    assert "trace.jsonl:2: " in message
    assert says in message
    assert "\n" not in message


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no requests"):
        read(tmp_path, "\n")
