"""LangChain's ChatOpenAI, over the routes for chats and for responses."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from .conftest import CITY, SCHEMA, SCRIPT

langchain_openai = pytest.importorskip("langchain_openai")

TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": SCHEMA}}


class Weather(pydantic.BaseModel):
    """The type of a structured answer."""

    city: str
    days: int


def model_of(url: str, *, over_responses: bool) -> Any:
    base = f"{url}/v1"
    return langchain_openai.ChatOpenAI(model="sim", base_url=base, api_key="none", use_responses_api=over_responses)


@pytest.fixture(params=[False, True], ids=["chats", "responses"])
def model(url: str, request: pytest.FixtureRequest) -> Any:
    return model_of(url, over_responses=request.param)


def test_an_answer_whole_and_streamed(model: Any) -> None:
    answer = model.invoke("hello")
    assert answer.text == SCRIPT["hello"]
    assert answer.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream("hello"))
    assert "".join(chunk.text for chunk in chunks) == SCRIPT["hello"]


@pytest.mark.anyio
async def test_answers_from_a_coroutine(url: str) -> None:
    for model in (model_of(url, over_responses=False), model_of(url, over_responses=True)):  # they share connections
        assert (await model.ainvoke("hello")).text == SCRIPT["hello"]
        assert "".join([chunk.text async for chunk in model.astream("hello")]) == SCRIPT["hello"]


def test_a_tool_call_and_its_result_make_a_round_trip(model: Any) -> None:
    bound = model.bind_tools([TOOL])
    messages: list[Any] = [("system", "ask"), ("human", "hi")]
    first = bound.invoke(messages)
    [call] = first.tool_calls
    assert (call["name"], call["args"]) == ("weather", CITY)
    total: Any = None
    for chunk in bound.stream(messages):
        total = chunk if total is None else total + chunk
    assert [(streamed["name"], streamed["args"]) for streamed in total.tool_calls] == [("weather", CITY)]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    second = bound.invoke([("system", "told"), ("human", "hi"), first, result])
    assert second.text == SCRIPT["told"]


def test_an_answer_parsed_into_a_type(model: Any) -> None:
    form = model.with_structured_output(Weather, method="json_schema")
    assert form.invoke([("system", "form"), ("human", "hi")]) == Weather(**CITY)
