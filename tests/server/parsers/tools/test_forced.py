"""Answers that consist only of forced calls."""

from __future__ import annotations

from functools import partial

import pytest

from ebbtide.server.parsers.output_parser import ParserConfig
from ebbtide.server.parsers.tools.forced import one_call, only_calls

from ...reading_tool import SCHEMAS, Read, read_with

CALLS = ParserConfig(parse_calls=partial(only_calls, names=SCHEMAS))
ONE = ParserConfig(parse_calls=partial(one_call, name="clock"))


def both(config: ParserConfig, text: str, finish: str = "stop") -> Read:
    whole = read_with(config, [text], finish)
    assert read_with(config, list(text), finish) == whole
    return whole


def test_a_list_of_calls() -> None:
    text = '\n[{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"city": "日"}}]'
    assert both(CALLS, text) == Read("", [("clock", "{}"), ("weather", '{"city": "日"}')], "tool_calls")


def test_arguments_alone() -> None:
    assert both(ONE, ' {"a": 1}\n') == Read("", [("clock", '{"a": 1}')], "tool_calls")


@pytest.mark.parametrize(
    ("config", "text", "calls"),
    [
        (CALLS, '[{"name": "clock", "arguments": {"a', [("clock", '{"a')]),
        (CALLS, '[{"name": "clo', []),
        (ONE, '{"a": ', [("clock", '{"a": ')]),
        (ONE, "{", []),
    ],
)
def test_a_truncated_answer_has_the_finish_reason_length(
    config: ParserConfig, text: str, calls: list[tuple[str, str]]
) -> None:
    assert both(config, text, "length") == Read("" if calls else text, calls, "length")


@pytest.mark.parametrize("text", ["no call", "[]", '[{"name": "nobody", "arguments": {}}]'])
def test_anything_else_is_text(text: str) -> None:
    assert both(CALLS, text) == Read(text, [], "stop")
