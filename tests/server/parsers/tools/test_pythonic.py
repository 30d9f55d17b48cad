"""Calls as a Python list."""

from __future__ import annotations

import json

import pytest

from ...reading_tool import Read, in_every_split, read


def test_all_calls_of_a_list_are_read() -> None:
    text = """[weather(city="it's ]) \\"x\\" 日本", days=-2), clock(a={'b': [True, None]})]"""
    result = in_every_split("pythonic", text)
    assert (result.text, result.finish) == ("", "tool_calls")
    assert [(name, json.loads(arguments)) for name, arguments in result.calls] == [
        ("weather", {"city": 'it\'s ]) "x" 日本', "days": -2}),
        ("clock", {"a": {"b": [True, None]}}),
    ]


def test_a_list_between_marks_is_read_anywhere() -> None:
    text = "sure <|tool_call_start|>[clock()]<|tool_call_end|> done"
    assert in_every_split("lfm2", text) == Read("sure done", [("clock", "{}")], "tool_calls")
    assert in_every_split("llama4", "<|python_start|>[clock()]<|python_end|>").calls == [("clock", "{}")]


def test_a_list_may_be_json_instead() -> None:
    text = 'sure <|tool_call_start|>[ {"name": "clock", "arguments": {"a": 1}} ]<|tool_call_end|> done'
    assert in_every_split("lfm2", text) == Read("sure done", [("clock", '{"a": 1}')], "tool_calls")


@pytest.mark.parametrize(
    "text",
    [
        "[1] Paris",
        "[]",
        "[clock",
        "[clock()",
        "[clock(])",
        "[clock(1)]",
        "[clock(**x)]",
        "[clock(a=b)]",
        "[clock(a=1e999)]",
        "[clock(a={1})]",
        "[clock(a=b'x')]",
        "[clock(), nobody()]",
        "[clock(), 3]",
        "[clock(a=" + "[" * 80 + "]" * 80 + ")]",
        "[clock(a='\0')]",
        "[__import__('os').system(x='true')]",
        "",
        " ",
    ],
)
def test_anything_else_stays_text(text: str) -> None:
    assert in_every_split("pythonic", text) == Read(text, [], "stop")


def test_an_unterminated_list_is_text() -> None:
    text = "[clock(a='" + "x" * 100_100
    assert read("pythonic", [text[:50], text[50:]]) == Read(text, [], "stop")
