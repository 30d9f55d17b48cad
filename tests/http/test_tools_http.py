"""Tools and reasoning of a complete daemon, requested with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from .conftest import Api

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 👩‍👩‍👧 e\u0301", "days": 2}}\n</tool_call>'
CITY = {"city": "Zürich 👩‍👩‍👧 e\u0301", "days": 2}
# The beginning of the system message selects the answer of the model.
SCRIPT = {
    "one": f"I look.\n{CALL}",
    "two": f"<think>\nTwo 日本.\n</think>\n\n{CALL}\n{CALL}",
    "broken": '<tool_call>{"name": "weather", "arguments": {oops}}</tool_call> 🌊',
    "stop": "before <tool STOP after",
    "done": "It is sunny.",
    "think": "<think>\nWhy 👩‍👩‍👧?\n</think>\n\nYes 日本.",
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


class Weather(pydantic.BaseModel):
    """Look up the weather."""

    city: str
    days: int


@pytest.fixture(scope="module")
def tools_api(start_shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    script: Path = tmp_path_factory.mktemp("script") / "tools.json"
    script.write_text(json.dumps(SCRIPT))
    api = Api(start_shared_daemon("--sim-script", str(script), "--reasoning-parser", "think").url)
    yield api
    api.close()


def asked(case: str) -> list[Any]:
    return [{"role": "system", "content": case}, {"role": "user", "content": "hi"}]


def ask(api: Api, case: str, **more: Any) -> Any:
    options = {"model": "sim", "messages": asked(case), "tools": TOOLS, "temperature": 0, **more}
    return api.openai.chat.completions.create(**options)


def collected(stream: Any) -> dict[str, Any]:
    """The message that a simple client builds from a stream."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": []}
    for chunk in stream:
        for choice in chunk.choices:
            found["content"] += choice.delta.content or ""
            found["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for part in choice.delta.tool_calls or []:
                if part.id:
                    found["calls"].append([part.function.name, ""])
                found["calls"][part.index][1] += part.function.arguments
            found["finish"] += [choice.finish_reason] if choice.finish_reason else []
    return found


def as_collected(answer: Any) -> dict[str, Any]:
    [choice] = answer.choices
    return {
        "content": choice.message.content or "",
        "reasoning": getattr(choice.message, "reasoning_content", None) or "",
        "calls": [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []],
        "finish": [choice.finish_reason],
    }


@pytest.mark.parametrize("case", [*SCRIPT, "unscripted"])
@pytest.mark.parametrize("choice", ["auto", "none", "required", NAMED])
@pytest.mark.parametrize("max_tokens", [400, 30, 4])
def test_a_stream_equals_the_response_without_stream(tools_api: Api, case: str, choice: Any, max_tokens: int) -> None:
    options = {"tool_choice": choice, "max_tokens": max_tokens, "stop": ["STOP"]}
    whole = as_collected(ask(tools_api, case, **options))
    assert collected(ask(tools_api, case, **options, stream=True)) == whole


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("max_tokens", [600, 4])
def test_a_forced_call_ends_as_calls_unless_it_was_cut(api: Api, choice: Any, max_tokens: int) -> None:
    options = {"tool_choice": choice, "max_tokens": max_tokens, "parallel_tool_calls": False}
    whole = as_collected(ask(api, "unscripted", **options))
    assert whole["finish"] == ["tool_calls" if max_tokens == 600 else "length"]
    assert collected(ask(api, "unscripted", **options, stream=True)) == whole


def test_a_conversation_with_a_tool_call_can_be_continued(tools_api: Api) -> None:
    first = ask(tools_api, "one").choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content == "I look.\n"
    [call] = first.message.tool_calls
    assert json.loads(call.function.arguments) == CITY
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = ask(tools_api, "one", messages=[*asked("done"), first.message.model_dump(), result])
    assert as_collected(second) == {"content": "It is sunny.", "reasoning": "", "calls": [], "finish": ["stop"]}


def test_the_clients_stream_helper_joins_calls(tools_api: Api) -> None:
    with tools_api.openai.chat.completions.stream(model="sim", messages=asked("two"), tools=TOOLS) as stream:
        events = [event.type for event in stream]
        message: Any = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.delta" in events
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [CITY, CITY]
    assert len({call.id for call in message.tool_calls}) == 2
    assert message.reasoning_content == message.reasoning == "Two 日本."


def test_the_client_parses_forced_calls_into_its_own_types(api: Api) -> None:
    tool = openai.pydantic_function_tool(Weather)
    answer = api.openai.chat.completions.parse(
        model="sim",
        messages=asked("unscripted"),
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=1,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


def test_forced_arguments_are_valid_for_their_schema(api: Api) -> None:
    for seed in range(10):
        options = {"seed": seed, "temperature": 1, "max_tokens": 2000}
        found = as_collected(ask(api, "unscripted", tool_choice=NAMED, **options))
        [[name, arguments]] = found["calls"]
        assert name == "weather"
        assert found["finish"] == ["tool_calls"]
        values = json.loads(arguments)
        assert set(values) == {"city", "days"}
        assert type(values["days"]) is int
        assert len(values["city"]) <= 20


def test_reasoning_tokens_are_counted(tools_api: Api) -> None:
    usage = ask(tools_api, "think").usage
    assert usage.completion_tokens_details.reasoning_tokens == len(SCRIPT["think"].partition("\n\n")[0].encode())
    *_, last = ask(tools_api, "think", stream=True, stream_options={"include_usage": True})
    assert last.usage.model_dump(exclude={"prompt_tokens_details"}) == usage.model_dump(
        exclude={"prompt_tokens_details"}
    )


def test_a_broken_call_is_content(tools_api: Api) -> None:
    found = as_collected(ask(tools_api, "broken"))
    assert found == {"content": SCRIPT["broken"], "reasoning": "", "calls": [], "finish": ["stop"]}


def test_text_in_front_of_a_stop_string_is_not_lost(tools_api: Api) -> None:
    found = as_collected(ask(tools_api, "stop", stop="STOP"))
    assert (found["content"], found["finish"]) == ("before <tool ", ["stop"])
