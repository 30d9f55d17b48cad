"""The grammar of answers that must be calls."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.errors import Rejected
from ebbtide.guidance import grammar_of
from ebbtide.server.tool_fields import ToolUse
from ebbtide.server.tool_grammar import tool_constraint

from .test_structured import matches

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
WITH_DEFS = {**CITY, "$defs": {"city": {"enum": ["Rome", "Zürich"]}}}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
WEATHER = '{"name": "weather", "arguments": {"city": "Rome"}}'
CLOCK = '{"name": "clock", "arguments": {}}'


def accepts(answer: str, **more: Any) -> bool:
    use = ToolUse([], {"weather": WITH_DEFS, "clock": EMPTY}, required=True, **more)
    return matches(grammar_of(tool_constraint(use).lark, special_ids={}), answer)


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
    use = ToolUse([], {"f": {**EMPTY, "additionalProperties": True}}, required=True, named="f")
    assert matches(grammar_of(tool_constraint(use).lark, special_ids={}), '{"any": 1}')


def test_a_schema_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(Rejected):
        tool_constraint(ToolUse([], {"f": {"properties": 3}}, required=True))
