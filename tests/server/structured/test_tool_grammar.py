"""The grammar of answers that must be calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.errors import Rejected
from ebbtide.grammar import ReasoningPrefix, grammar_of, mark_in_lark
from ebbtide.server.parsers.tool_fields import ToolOptions
from ebbtide.server.parsers.tools.table import FORMATS
from ebbtide.server.structured.tool_grammar import calls_alternative, tool_constraint

from ..reading_tool import read
from .test_structured import matches

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
WITH_DEFS = {**CITY, "$defs": {"city": {"enum": ["Rome", "Zürich"]}}}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
WEATHER = '{"name": "weather", "arguments": {"city": "Rome"}}'
CLOCK = '{"name": "clock", "arguments": {}}'


def accepts(answer: str, **more: Any) -> bool:
    options = ToolOptions([], {"weather": WITH_DEFS, "clock": EMPTY}, required=True, **more)
    return matches(grammar_of(tool_constraint(options).lark, special_ids={}), answer)


@pytest.mark.parametrize("answer", [f"[{WEATHER}]", f"[{CLOCK}]", f"[{WEATHER}, {CLOCK}, {WEATHER}]"])
def test_a_list_of_valid_calls_is_an_answer(answer: str) -> None:
    assert accepts(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "[]",
        "",
        WEATHER,
        "I look.",
        f"[{WEATHER.replace('Rome', 'Paris')}]",
        f"[{WEATHER.replace('weather', 'clock')}]",
        f"[{CLOCK.replace('clock', 'weather')}]",
        f"[{CLOCK.replace('clock', 'nobody')}]",
        f"[{WEATHER},]",
        f"[{CLOCK.replace('{}', '[]')}]",
        "[" + ", ".join([CLOCK] * 33) + "]",
    ],
)
def test_anything_else_is_none(answer: str) -> None:
    assert not accepts(answer)


def test_there_are_at_most_32_calls_or_one() -> None:
    assert accepts("[" + ", ".join([CLOCK] * 32) + "]")
    assert accepts(f"[{CLOCK}]", max_calls=1)
    assert not accepts(f"[{CLOCK}, {CLOCK}]", max_calls=1)


def test_a_named_function_has_only_its_arguments() -> None:
    assert accepts('{"city": "Zürich"}', named="weather")
    assert not accepts('{"city": "Zürich", "more": 1}', named="weather")
    assert not accepts("{}", named="weather")
    assert not accepts(f"[{WEATHER}]", named="weather")


def test_keys_are_open_where_a_schema_says_so() -> None:
    options = ToolOptions([], {"f": {**EMPTY, "additionalProperties": True}}, required=True, named="f")
    assert matches(grammar_of(tool_constraint(options).lark, special_ids={}), '{"any": 1}')


def test_a_schema_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(Rejected):
        tool_constraint(ToolOptions([], {"f": {"properties": 3}}, required=True))


ANSWER = '{"answer": 1}'
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "clock", "arguments": {"a": [1]}}\n</tool_call>',
    "llama3": '{"name": "clock", "parameters": {"a": [1]}}',
    "mistral": '[TOOL_CALLS] [{"name": "clock", "arguments": {"a": [1]}}, {"name": "weather", "arguments": {}}]',
    "nemotron": '<TOOLCALL>[{"name": "clock", "arguments": {"a": [1]}}]',
    "granite": '<|tool_call|>[{"name": "clock", "arguments": {"a": [1]}}]',
    "internlm": '<|action_start|><|plugin|>\n{"name": "clock", "parameters": {"a": [1]}}<|action_end|>',
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("prefix", [None, ReasoningPrefix("</think>")])
def test_calls_may_take_the_place_of_a_constrained_answer(name: str, prefix: ReasoningPrefix | None) -> None:
    form = FORMATS[name].form
    assert form is not None
    options = ToolOptions([], {"weather": WITH_DEFS, "clock": EMPTY})
    alternative = calls_alternative(options, form, lambda mark: mark_in_lark(mark, {}))
    grammar = grammar_of(f"start: {json.dumps(ANSWER)}", special_ids={}, prefix=prefix, alternative=alternative)
    first = "" if prefix is None else "why</think>\n"
    assert matches(grammar, first + ANSWER)
    assert matches(grammar, first + WRITTEN[name])
    for wrong in (ANSWER[:-1], WRITTEN[name].replace("clock", "nobody"), "I look.", ANSWER + WRITTEN[name]):
        assert not matches(grammar, first + wrong)
    assert read(name, [WRITTEN[name]]).calls[0] == ("clock", '{"a": [1]}')


@pytest.mark.parametrize("max_calls", [None, 1])
def test_several_calls_may_take_its_place_unless_only_one_is_wanted(max_calls: int | None) -> None:
    form = FORMATS["hermes"].form
    assert form is not None
    options = ToolOptions([], {"weather": WITH_DEFS, "clock": EMPTY}, max_calls=max_calls)
    grammar = grammar_of('start: "x"', special_ids={}, alternative=calls_alternative(options, form, json.dumps))
    assert matches(grammar, f"{WRITTEN['hermes']}\n{WRITTEN['hermes']}") is (max_calls is None)


def test_a_family_without_call_objects_has_no_form() -> None:
    assert FORMATS["deepseek"].form is None
    assert FORMATS["glm"].form is None
