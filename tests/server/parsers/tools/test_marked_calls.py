"""Calls after a marker: hermes, Llama 3, Mistral, DeepSeek and similar formats."""

from __future__ import annotations

import json

import pytest

from ...reading_tool import Read, in_every_split, read

ARGUMENTS = '{"city": "Zürich 👩‍👩‍👧 日本語 e\u0301", "days": 2}'
ONE = [("weather", ARGUMENTS)]
TWO = [*ONE, ("clock", "{}")]

GOOD: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "hermes": (f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>', ONE),
    "llama3": (f'{{"name": "weather", "parameters": {ARGUMENTS}}}; {{"name": "clock", "parameters": {{}}}}', TWO),
    "mistral": (f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "clock"}}]', TWO),
    "deepseek": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        TWO,
    ),
    "kimi": (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{ARGUMENTS}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        ONE,
    ),
    "jamba": (f'<tool_calls>[\n  {{"name": "weather", "arguments": {ARGUMENTS}}}\n]</tool_calls>', ONE),
    "granite": (f'<|tool_call|>[{{"arguments": {ARGUMENTS}, "name": "weather"}}]', ONE),
    "nemotron": (f'<TOOLCALL>[{{"name": "weather", "arguments": {ARGUMENTS}}}]</TOOLCALL>', ONE),
    "cohere": (
        f'<|START_ACTION|>[\n {{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}}\n]'
        "<|END_ACTION|>",
        ONE,
    ),
    "internlm": (
        f'<|action_start|><|plugin|>\n{{"name": "weather", "parameters": {ARGUMENTS}}}<|action_end|>\n',
        ONE,
    ),
    "longcat": (f'<longcat_tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</longcat_tool_call>', ONE),
    "phi4": (f'functools[{{"name": "weather", "arguments": {ARGUMENTS}}}]', ONE),
}


@pytest.mark.parametrize("name", GOOD)
def test_calls_are_parsed_alike_for_any_split(name: str) -> None:
    text, calls = GOOD[name]
    assert in_every_split(name, text) == Read("", calls, "tool_calls")


@pytest.mark.parametrize("name", sorted(set(GOOD) - {"llama3"}))
def test_text_in_front_and_behind_is_content(name: str) -> None:
    text, calls = GOOD[name]
    assert in_every_split(name, f"I look. {text}\nDone: 👍") == Read("I look. Done: 👍", calls, "tool_calls")


def test_calls_follow_each_other_without_text_between() -> None:
    one = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>\n'
    assert in_every_split("hermes", one * 3) == Read("", [("clock", "{}")] * 3, "tool_calls")


def test_mistral_takes_a_name_in_front_of_the_arguments() -> None:
    text = '[TOOL_CALLS]weather[ARGS]{"city": "x"}[TOOL_CALLS]clock{}[TOOL_CALLS]clock[CALL_ID]abc123[ARGS]{}'
    calls = [("weather", '{"city": "x"}'), ("clock", "{}"), ("clock", "{}")]
    assert in_every_split("mistral", text) == Read("", calls, "tool_calls")


def test_a_closing_mark_of_either_kind_belongs_to_a_call() -> None:
    text = '<|tool_call|>{"name": "clock", "arguments": {}}<|/tool_call|>'
    assert in_every_split("granite", text) == Read("", [("clock", "{}")], "tool_calls")


def test_a_python_tag_begins_a_call_of_llama() -> None:
    text = '<|python_tag|>{"type": "function", "name": "clock", "parameters": {"a": null}}'
    assert in_every_split("llama3", text).calls == [("clock", '{"a": null}')]


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "nobody", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"arguments": {"a": 1}}',
        '{"name": "clock", "arguments": 3}',
        '{"name": "clock", "arguments": [1]}',
        '{"name": "clock", "arguments": "no object"}',
        '{"name": "clock", "arguments": {broken}}',
        '{"name": "clock" oops}',
        '{"name": "clock", "mood": "good"}',
        "{}",
        "[]",
        "[3]",
        "weather today",
        "",
        '{"name": "clo',
    ],
)
def test_text_that_is_not_a_call_stays_text(body: str) -> None:
    text = f"a <tool_call>{body}</tool_call> b"
    assert in_every_split("hermes", text) == Read(text, [], "stop")


@pytest.mark.parametrize("text", ['{"answer": 42}', ' {"name": "Bob", "age": 3}', "[1, 2]", "{", "{{x}}", "  ", ""])
def test_a_json_answer_that_is_not_a_call_stays_text(text: str) -> None:
    assert in_every_split("llama3", text) == Read(text, [], "stop")


def test_a_call_after_a_broken_one_is_read() -> None:
    text = '<tool_call>{oops}</tool_call><tool_call>{"name": "clock"}</tool_call>'
    assert in_every_split("hermes", text) == Read("<tool_call>{oops}</tool_call>", [("clock", "{}")], "tool_calls")


def test_half_a_mark_at_the_end_is_text() -> None:
    assert in_every_split("hermes", "a <tool_ca") == Read("a <tool_ca", [], "stop")


def test_arguments_in_front_of_the_name_wait_for_it() -> None:
    text = '<tool_call>{"arguments": {"a": [1, {"b": "}"}]}, "name": "clock"}</tool_call>'
    assert in_every_split("hermes", text).calls == [("clock", '{"a": [1, {"b": "}"}]}')]


def test_arguments_in_a_string_are_taken_out_of_it() -> None:
    text = '<tool_call>{"name": "clock", "arguments": "{\\"a\\": 2}"}</tool_call>'
    assert in_every_split("hermes", text).calls == [("clock", '{"a": 2}')]


def test_raw_line_breaks_in_a_string_are_escaped() -> None:
    text = '<tool_call>{"name": "clock", "arguments": {"code": "a\n\tb"}}</tool_call>'
    [(_, arguments)] = in_every_split("hermes", text).calls
    assert json.loads(arguments) == {"code": "a\n\tb"}


def test_brackets_too_many_behind_a_call_are_dropped() -> None:
    assert in_every_split("hermes", '<tool_call>{"name": "clock"}}]</tool_call>!') == Read(
        "!", [("clock", "{}")], "tool_calls"
    )


def test_broken_arguments_of_an_announced_call_stay_as_they_are() -> None:
    text = '<tool_call>{"name": "clock", "arguments": {"a": 1,}}</tool_call> ok'
    assert in_every_split("hermes", text) == Read("ok", [("clock", '{"a": 1,}')], "tool_calls")


def test_broken_arguments_end_at_the_closing_mark() -> None:
    text = '<tool_call>{"name": "clock", "arguments": {"a" 1 </tool_call> ok'
    assert in_every_split("hermes", text) == Read("ok", [("clock", '{"a" 1 ')], "tool_calls")


def test_a_call_that_is_cut_off_keeps_the_reason_of_the_end() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Par'
    assert in_every_split("hermes", text, finish="length") == Read("", [("weather", '{"city": "Par')], "length")
    assert in_every_split("hermes", text, finish="stop").finish == "stop"


def test_complete_calls_of_a_cut_answer_are_still_cut() -> None:
    text = '<tool_call>{"name": "clock"}</tool_call> and'
    assert read("hermes", [text], finish="length") == Read("and", [("clock", "{}")], "length")


def test_a_list_goes_on_as_text_where_its_calls_end() -> None:
    text = '[TOOL_CALLS] [{"name": "clock"}, {"name": "nobody"}]'
    assert in_every_split("mistral", text) == Read(', {"name": "nobody"}]', [("clock", "{}")], "tool_calls")


def test_marks_without_a_call_are_text() -> None:
    assert in_every_split("deepseek", "yes<｜tool▁calls▁begin｜> no") == Read(
        "yes<｜tool▁calls▁begin｜> no", [], "stop"
    )


def test_no_more_calls_than_allowed() -> None:
    one = '<tool_call>{"name": "clock", "arguments": {"a": 1}}</tool_call>'
    assert in_every_split("hermes", f"{one}\n{one}", max_calls=1) == Read("", [("clock", '{"a": 1}')], "tool_calls")


def test_arguments_may_nest_deeper_than_is_checked() -> None:
    arguments = '{"a":' * 70 + "1" + "}" * 70
    text = f'<tool_call>{{"name": "clock", "arguments": {arguments}}}</tool_call>'
    assert in_every_split("hermes", text).calls == [("clock", arguments)]


def test_arguments_are_sent_before_they_are_complete() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Par'
    assert read("hermes", [*text, "is"], finish="length").calls == [("weather", '{"city": "Paris')]
