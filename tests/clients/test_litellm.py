"""LiteLLM, as a client of the OpenAI routes and of Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import CITY, SCHEMA, SCRIPT

litellm = pytest.importorskip("litellm")

TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": SCHEMA}}


@pytest.fixture(params=["openai", "anthropic"])
def options(url: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    base = f"{url}/v1" if request.param == "openai" else url
    return {"model": f"{request.param}/sim", "api_base": base, "api_key": "none", "max_tokens": 400}


def asked(case: str) -> list[Any]:
    return [{"role": "system", "content": case}, {"role": "user", "content": "hi"}]


def test_an_answer_whole_and_streamed(options: dict[str, Any]) -> None:
    answer = litellm.completion(messages=asked("hello"), **options)
    assert answer.choices[0].message.content == SCRIPT["hello"]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0
    chunks = litellm.completion(messages=asked("hello"), stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SCRIPT["hello"]


def test_a_tool_call_and_its_result_make_a_round_trip(options: dict[str, Any]) -> None:
    first = litellm.completion(messages=asked("ask"), tools=[TOOL], **options).choices[0]
    assert first.finish_reason == "tool_calls"
    [call] = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CITY)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = litellm.completion(messages=[*asked("told"), first.message, result], tools=[TOOL], **options)
    assert second.choices[0].message.content == SCRIPT["told"]


def test_a_response(url: str) -> None:
    response = litellm.responses(model="openai/sim", input="hello", api_base=f"{url}/v1", api_key="none")
    assert response.output[0].content[0].text == SCRIPT["hello"]
