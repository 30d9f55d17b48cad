"""Calls as elements: Qwen3-Coder, GLM, MiniMax."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.server.parsers.output_parser import ParserConfig
from ebbtide.server.parsers.tools.table import FORMATS

from ...reading_tool import Read, in_every_split, read, read_with

QWEN = (
    "<tool_call>\n<function=weather>\n<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n{days}\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>{days}</arg_value>\n</tool_call>"
)
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">{city}</parameter>\n'
    '<parameter name="days">{days}</parameter>\n</invoke>\n</minimax:tool_call>'
)
FORMS = {
    "qwen3_coder": QWEN,
    "seed_oss": QWEN.replace("tool_call>", "seed:tool_call>"),
    "glm": GLM,
    "minimax": MINIMAX,
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("city", ['a "b"\n\tc\\', "5", "", "日本語 👩‍👩‍👧 e\u0301", "<b>", "\n\n"])
def test_a_text_argument_is_the_text_itself(name: str, city: str) -> None:
    result = in_every_split(name, "go " + FORMS[name].format(city=city, days=3) + "\n")
    assert (result.text, result.finish) == ("go ", "tool_calls")
    [(function, arguments)] = result.calls
    values = json.loads(arguments)
    assert (function, values["days"]) == ("weather", 3)
    # One line break at either end belongs to the marks.
    own_lines = name in ("qwen3_coder", "seed_oss")
    assert values["city"] == city if own_lines else values["city"] in (city, city[1:-1])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("3", 3),
        ("True", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("three", "three"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_any_other_argument_is_json_if_it_can_be(written: str, value: object) -> None:
    [(_, arguments)] = read("qwen3_coder", [QWEN.format(city="x", days=written)]).calls
    assert json.loads(arguments)["days"] == value


@pytest.mark.parametrize(
    "types", [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"oneOf": [{"type": ["string", "null"]}]}]
)
def test_a_text_that_may_be_absent_is_a_text_or_null(types: dict[str, Any]) -> None:
    def read_city(written: str) -> object:
        schemas = {"weather": {"type": "object", "properties": {"city": types}}}
        config = ParserConfig(parse_calls=lambda scanner: FORMATS["qwen3_coder"].read(scanner, schemas))
        [(_, arguments)] = read_with(config, list(QWEN.format(city=written, days=1))).calls
        return json.loads(arguments)["city"]

    assert [read_city(written) for written in ("5", "None", "null", "Rome")] == ["5", None, None, "Rome"]


def test_calls_without_arguments() -> None:
    assert in_every_split("glm", "<tool_call>clock\n</tool_call>").calls == [("clock", "{}")]
    assert in_every_split("qwen3_coder", "<function=clock>\n</function>").calls == [("clock", "{}")]


@pytest.mark.parametrize("name", FORMS)
def test_an_unknown_function_stays_text(name: str) -> None:
    text = FORMS[name].format(city="x", days=1).replace("weather", "nobody")
    assert in_every_split(name, text) == Read(text, [], "stop")


@pytest.mark.parametrize("name", FORMS)
def test_a_call_that_is_cut_keeps_the_reason_of_the_end(name: str) -> None:
    text = FORMS[name].format(city="Par", days=1).partition("days")[0]
    result = in_every_split(name, text, finish="length")
    assert result.finish == "length"
    assert result.calls[0][0] == "weather"
    assert result.calls[0][1].startswith('{"city": "Par')


def test_marks_without_a_call_are_text() -> None:
    assert in_every_split("qwen3_coder", "a <tool_call>\nb") == Read("a <tool_call>\nb", [], "stop")
