"""The openai package: chats and responses, with its helpers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from .conftest import CITY, SCHEMA, SCRIPT

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TOOL: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}


class Weather(pydantic.BaseModel):
    """The type of a structured answer."""

    city: str
    days: int


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


@pytest.fixture
async def aclient(url: str) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


def asked(case: str) -> list[Any]:
    return [{"role": "system", "content": case}, {"role": "user", "content": "hi"}]


def test_the_model_is_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["sim"]


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="sim", messages=HELLO)
    assert answer.choices[0].message.content == SCRIPT["hello"]
    chunks = list(client.chat.completions.create(model="sim", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SCRIPT["hello"]


@pytest.mark.anyio
async def test_a_chat_from_a_coroutine(aclient: openai.AsyncOpenAI) -> None:
    answer = await aclient.chat.completions.create(model="sim", messages=HELLO)
    assert answer.choices[0].message.content == SCRIPT["hello"]
    stream = await aclient.chat.completions.create(model="sim", messages=HELLO, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == SCRIPT["hello"]


def test_the_stream_helper_of_chats(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="sim", messages=asked("ask"), tools=[CHAT_TOOL]) as stream:
        kinds = {event.type for event in stream}
        choice = stream.get_final_completion().choices[0]
    assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    assert choice.message.tool_calls is not None
    assert json.loads(choice.message.tool_calls[0].function.arguments) == CITY
    assert choice.finish_reason == "tool_calls"


def test_a_chat_parsed_into_a_type(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="sim", messages=asked("form"), response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(**CITY)


def test_a_response_whole_and_streamed(client: openai.OpenAI) -> None:
    response = client.responses.create(model="sim", input="hello", store=False)
    assert response.output_text == SCRIPT["hello"]
    assert response.status == "completed"
    events = list(client.responses.create(model="sim", input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == SCRIPT["hello"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == SCRIPT["hello"]
    assert last.response.usage is not None
    assert response.usage is not None
    assert last.response.usage.output_tokens == response.usage.output_tokens


@pytest.mark.anyio
async def test_a_response_from_a_coroutine(aclient: openai.AsyncOpenAI) -> None:
    response = await aclient.responses.create(model="sim", input="hello")
    assert response.output_text == SCRIPT["hello"]
    async with aclient.responses.stream(model="sim", input="hello") as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_text == SCRIPT["hello"]


def test_the_stream_helper_of_responses(client: openai.OpenAI) -> None:
    with client.responses.stream(model="sim", instructions="ask", input="hi", tools=[TOOL]) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        response = stream.get_final_response()
    assert json.loads(snapshots[-1]) == CITY
    message, call = response.output
    assert message.type == "message"
    assert call.type == "function_call"
    assert call.parsed_arguments == CITY


def test_a_response_parsed_into_a_type(client: openai.OpenAI) -> None:
    response = client.responses.parse(model="sim", instructions="form", input="hi", text_format=Weather)
    assert response.output_parsed == Weather(**CITY)
    with client.responses.stream(model="sim", instructions="form", input="hi", text_format=Weather) as stream:
        assert stream.until_done().get_final_response().output_parsed == Weather(**CITY)


def test_a_tool_call_works_if_the_whole_conversation_is_sent_again(client: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "hi"}]
    first = client.responses.create(model="sim", instructions="ask twice", input=items, tools=[TOOL])
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [CITY, CITY]
    items += [item.to_dict() for item in first.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"} for call in calls]
    second = client.responses.create(model="sim", instructions="told", input=items, tools=[TOOL])
    assert second.output_text == SCRIPT["told"]


@pytest.mark.parametrize(
    ("case", "choice"), [("must call", "required"), ("form", {"type": "function", "name": "weather"})]
)
def test_a_required_tool_call_is_made(client: openai.OpenAI, case: str, choice: Any) -> None:
    options: Any = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    [call] = client.responses.create(model="sim", instructions=case, input="hi", **options).output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == CITY


def test_reasoning_is_the_first_item(client: openai.OpenAI) -> None:
    response = client.responses.create(model="sim", input="think", reasoning={"effort": "low"})
    reasoning, _ = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Why 日本?"
    assert response.output_text == "Yes."
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_a_response_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model="sim", input="hello", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    *_, last = client.responses.create(model="sim", input="hello", max_output_tokens=3, stream=True)
    assert last.type == "response.incomplete"


def test_what_is_not_stored_is_not_found(client: openai.OpenAI) -> None:
    response = client.responses.create(model="sim", input="hello")
    with pytest.raises(openai.NotFoundError, match="stores no responses") as error:
        client.responses.create(model="sim", input="hello", previous_response_id=response.id)
    assert error.value.code == "previous_response_not_found"
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="stores no responses"):
            ask(response.id)


def test_a_bad_value_is_named(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="sim", input="hello", temperature=3)
    assert (error.value.param, error.value.type) == ("temperature", "invalid_request_error")
