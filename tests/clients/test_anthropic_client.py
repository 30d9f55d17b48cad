"""The anthropic package: messages, streams, tools, token counts, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from .conftest import CITY, SCHEMA, SCRIPT

anthropic = pytest.importorskip("anthropic")

HELLO: Any = {"model": "sim", "max_tokens": 200, "messages": [{"role": "user", "content": "hello"}]}
TOOL: Any = {"name": "weather", "description": "Looks.", "input_schema": SCHEMA}


class Weather(pydantic.BaseModel):
    """The type of a structured answer."""

    city: str
    days: int


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=url, api_key="none") as client:
        yield client


def asked(case: str) -> Any:
    return {"model": "sim", "max_tokens": 400, "system": case, "messages": [{"role": "user", "content": "hi"}]}


def test_a_message_whole_and_streamed(client: Any) -> None:
    message = client.messages.create(**HELLO)
    assert [block.text for block in message.content] == [SCRIPT["hello"]]
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", "sim")
    with client.messages.stream(**HELLO) as stream:
        assert "".join(stream.text_stream) == SCRIPT["hello"]
        final = stream.get_final_message()
    assert [block.text for block in final.content] == [SCRIPT["hello"]]
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == message.usage.output_tokens
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == total
    kinds = [event.type for event in client.messages.create(**HELLO, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


@pytest.mark.anyio
async def test_a_message_from_a_coroutine(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
        message = await client.messages.create(**HELLO)
        assert message.content[0].text == SCRIPT["hello"]
        async with client.messages.stream(**HELLO) as stream:
            assert "".join([text async for text in stream.text_stream]) == SCRIPT["hello"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_call_and_its_result_make_a_round_trip(client: Any, *, streamed: bool) -> None:
    if streamed:
        with client.messages.stream(**asked("ask"), tools=[TOOL]) as stream:
            first = stream.get_final_message()
    else:
        first = client.messages.create(**asked("ask"), tools=[TOOL])
    assert first.stop_reason == "tool_use"
    text, use = first.content
    assert text.text.startswith("I look.")
    assert (use.type, use.name, use.input) == ("tool_use", "weather", CITY)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    told = asked("told")
    told["messages"] += [first.to_param(), {"role": "user", "content": [result]}]
    second = client.messages.create(**told, tools=[TOOL])
    assert second.content[0].text == SCRIPT["told"]


@pytest.mark.parametrize(
    ("case", "choice"), [("must call", {"type": "any"}), ("form", {"type": "tool", "name": "weather"})]
)
def test_a_required_tool_call_is_made(client: Any, case: str, choice: Any) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    message = client.messages.create(**asked(case), tools=[TOOL], tool_choice=choice)
    assert message.stop_reason == "tool_use"
    [use] = message.content
    assert use.input == CITY


def test_thinking_is_the_first_block(client: Any) -> None:
    for message in (client.messages.create(**asked("think")), streamed_message(client, **asked("think"))):
        thinking, text = message.content
        assert (thinking.type, thinking.thinking, text.text) == ("thinking", "Why 日本?", "Yes.")
        assert message.usage.output_tokens_details.thinking_tokens > 0


def streamed_message(client: Any, **fields: Any) -> Any:
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("ask", [lambda client, **fields: client.messages.create(**fields), streamed_message])
def test_stop_sequences_and_limits_are_reported(client: Any, ask: Any) -> None:
    stopped = ask(client, **asked("stop"), stop_sequences=["STOP"])
    assert stopped.content[0].text == "before "
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    cut = ask(client, **{**asked("stop"), "max_tokens": 3})
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("bef", "max_tokens", None)


def test_a_message_parsed_into_a_type(client: Any) -> None:
    assert client.messages.parse(**asked("form"), output_format=Weather).parsed_output == Weather(**CITY)


def test_the_count_equals_the_prompt_tokens(client: Any) -> None:
    fields = asked("hello")
    fields.pop("max_tokens")
    count = client.messages.count_tokens(**fields, tools=[TOOL])
    usage = client.messages.create(**fields, max_tokens=1, tools=[TOOL]).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_the_model_is_found(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["sim"]
    assert client.models.retrieve("sim").id == "sim"


def test_errors_become_exceptions_of_the_client(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature") as error:
        client.messages.create(**HELLO, extra_body={"temperature": 1.5})
    assert error.value.type == "invalid_request_error"
    assert error.value.request_id
    with pytest.raises(anthropic.NotFoundError, match="'other'"):
        client.messages.create(**{**HELLO, "model": "other"})
