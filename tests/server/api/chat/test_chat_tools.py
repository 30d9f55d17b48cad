"""Tools on the chat route: the request to the engine, and the calls in the response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.messages import TextBatch, TextItem
from ebbtide.tokenization.vocabulary import SIM_SYSTEM

from ...conftest import LARGE_INFO, World
from ...structured.test_structured import matches
from ..test_streams import events

pytestmark = pytest.mark.anyio

RUNNER_INFO = LARGE_INFO
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Looks.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 👩‍👩‍👧 e\u0301"}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


async def whole(world: Any, reply: str, **fields: Any) -> dict[str, Any]:
    """Return the choice of a response with the output ``reply``."""
    world.engine.reply = reply
    answer = await world.chat(**{"tools": TOOLS, **fields})
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def streamed(world: Any, reply: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the choices of the chunks."""
    world.engine.reply = reply
    answer = await world.chat(**{"tools": TOOLS, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    return [chunk["choices"][0] for chunk in events(answer.text)[:-1]]


def joined(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a client builds from chunks, without ids."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for choice in choices:
        delta = choice["delta"]
        message["content"] += delta.get("content", "")
        message["reasoning"] += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(message["calls"])
                message["calls"].append([part["function"]["name"], ""])
            message["calls"][part["index"]][1] += part["function"]["arguments"]
    message["finish"] = choices[-1]["finish_reason"]
    return message


def as_joined(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the same message from a response without stream."""
    message = choice["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": calls,
        "finish": choice["finish_reason"],
    }


async def test_a_call_is_taken_out_of_the_answer(world: World) -> None:
    choice = await whole(world, f"I look.\n{CALL}")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look.\n"
    [call] = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Zürich 👩‍👩‍👧 e\u0301"}'}


async def test_content_is_null_beside_calls_alone(world: World) -> None:
    assert (await whole(world, CALL))["message"]["content"] is None


async def test_a_streamed_call_has_its_name_once_and_then_only_arguments(world: World) -> None:
    choices = await streamed(world, CALL)
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    first, *rest = parts
    assert first == {
        "index": 0,
        "id": first["id"],
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }
    assert len(rest) > 5, "the arguments come in pieces"
    assert all(set(part) == {"index", "function"} and set(part["function"]) == {"arguments"} for part in rest)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert choices[-1]["delta"] == {}


@pytest.mark.parametrize(
    "reply",
    [
        CALL,
        f"I look.\n{CALL}\n{CLOCK}\nDone 日本語 👩‍👩‍👧",
        "no call, e\u0301 日本語 👩‍👩‍👧",
        '<tool_call>{"name": "weather", "arguments": {broken</tool_call>',
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "Par',
        "almost <tool_ca",
    ],
)
@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_a_stream_equals_the_response_without_stream(world: World, reply: str, finish: str) -> None:
    world.engine.finish = finish
    message = as_joined(await whole(world, reply))
    assert joined(await streamed(world, reply)) == message
    if finish == "length":
        assert message["finish"] == "length"
    if not message["calls"]:
        assert (message["content"], message["finish"]) == (reply, finish)


async def test_text_in_front_of_a_stop_string_is_not_lost(world: World) -> None:
    def answer(request: Any) -> None:
        [rid] = request.rids
        item = TextItem(rid, "before <tool", tokens=[1], num_output_tokens=9, finish="stop", matched="END")
        world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    choice = await whole(world, "", stop=["END"])
    assert (choice["message"]["content"], choice["finish_reason"]) == ("before <tool", "stop")
    assert choice["stop_reason"] == "END"
    assert joined(await streamed(world, "", stop=["END"]))["content"] == "before <tool"


async def test_at_most_one_call_if_asked(world: World) -> None:
    choice = await whole(world, f"{CALL}\n{CLOCK}", parallel_tool_calls=False)
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert choice["finish_reason"] == "tool_calls"


async def test_none_reads_no_calls_and_shows_no_tools(world: World) -> None:
    choice = await whole(world, CALL, tool_choice="none")
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
    assert "tool_calls" not in choice["message"]
    assert SIM_SYSTEM not in world.engine.requests[0].prompt


async def test_an_empty_list_of_tools_is_none(world: World) -> None:
    choice = await whole(world, CALL, tools=[])
    assert choice["message"]["content"] == CALL


async def test_only_allowed_functions_are_calls(world: World) -> None:
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    choice = await whole(world, CALL + CLOCK, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["clock"]
    assert b"weather" in bytes(token for token in world.engine.requests[0].prompt if token < 256)


async def test_every_choice_has_calls_of_its_own(world: World) -> None:
    world.engine.reply = CALL
    body = (await world.chat(tools=TOOLS, n=3)).json()
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]]
    assert len(set(ids)) == 3
    chunks = [c["choices"][0] for c in events((await world.chat(tools=TOOLS, n=2, stream=True)).text)[:-1]]
    for index in range(2):
        mine = [choice for choice in chunks if choice["index"] == index]
        assert joined(mine)["calls"] == [["weather", '{"city": "Zürich 👩‍👩‍👧 e\u0301"}']]


async def test_logprobs_of_held_back_tokens_are_not_lost(world: World) -> None:
    reply = CALL.replace("Zürich 👩‍👩‍👧 e\u0301", "x")
    choices = await streamed(world, reply, logprobs=True)
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert "".join(entry["token"] for entry in entries) == reply


async def test_a_required_call_is_enforced_and_read(world: World) -> None:
    reply = '[{"name": "weather", "arguments": {"city": "日"}}, {"name": "clock", "arguments": {}}]'
    choice = await whole(world, reply, tool_choice="required")
    calls = [["weather", '{"city": "日"}'], ["clock", "{}"]]
    assert as_joined(choice) == {"content": "", "reasoning": "", "calls": calls, "finish": "tool_calls"}
    assert joined(await streamed(world, reply, tool_choice="required")) == as_joined(choice)
    assert matches(world.engine.requests[0].grammar, reply)
    assert not matches(world.engine.requests[0].grammar, "I would rather talk.")


async def test_a_named_function_is_called_and_reported(world: World) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    choice = await whole(world, '{"city": "日"}', tool_choice=named)
    calls = [["weather", '{"city": "日"}']]
    assert as_joined(choice) == {"content": "", "reasoning": "", "calls": calls, "finish": "tool_calls"}
    assert joined(await streamed(world, '{"city": "日"}', tool_choice=named)) == as_joined(choice)
    assert matches(world.engine.requests[0].grammar, '{"city": "日"}')


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
async def test_a_truncated_required_call_finishes_with_length(world: World, choice: Any) -> None:
    world.engine.finish = "length"
    reply = '{"city": "Par' if choice != "required" else '[{"name": "weather", "arguments": {"city": "Par'
    message = as_joined(await whole(world, reply, tool_choice=choice))
    assert message["calls"] == [["weather", '{"city": "Par']]
    assert message["finish"] == "length"
    assert joined(await streamed(world, reply, tool_choice=choice)) == message


async def test_a_required_call_has_priority_over_the_form_of_an_answer(world: World) -> None:
    await whole(world, "[]", tool_choice="required", response_format={"type": "json_object"})
    assert not matches(world.engine.requests[0].grammar, "{}")


async def test_a_call_may_take_the_place_of_an_answer_in_a_form(world: World) -> None:
    form = {"type": "json_object"}
    choice = await whole(world, CALL, response_format=form)
    assert choice["finish_reason"] == "tool_calls"
    assert matches(world.engine.requests[0].grammar, CALL)
    assert matches(world.engine.requests[0].grammar, '{"a": 1}')
    assert not matches(world.engine.requests[0].grammar, "I look.")
    assert (await whole(world, '{"a": 1}', response_format=form))["message"]["content"] == '{"a": 1}'


async def test_a_required_call_and_another_constraint_are_refused(world: World) -> None:
    reply = await world.chat(tools=TOOLS, tool_choice="required", regex="a+")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tool_choice"


async def test_a_schema_that_cannot_be_enforced_is_refused_only_then(world: World) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "odd"}}}}}]
    reply = await world.chat(tools=tools, tool_choice="required")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools"
    assert (await world.chat(tools=tools)).status_code == 200


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
async def test_a_conversation_with_calls_can_be_continued(world: World, content: dict[str, Any]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": "x"})}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    reply = await world.chat(messages=messages, tools=TOOLS)
    assert reply.status_code == 200, reply.text
    prompt = bytes(token for token in world.engine.requests[0].prompt if token < 256).decode()
    assert '"arguments": {"city": "x"}' in prompt
    assert "sunny" in prompt


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "only me"}],
        [{"role": "assistant", "content": ""}],
        [{"role": "assistant"}],
        [{"role": "assistant", "tool_calls": []}],
        [{"role": "tool", "tool_call_id": "x", "content": "y"}],
    ],
)
async def test_odd_conversations_are_not_server_errors(world: World, messages: list[dict[str, Any]]) -> None:
    assert (await world.chat(messages=messages)).status_code == 200
    assert (await world.chat(messages=messages, tools=TOOLS)).status_code == 200


@pytest.mark.parametrize("calls", ["x", [3], [{}], [{"function": {}}], [{"function": {"name": "f", "arguments": 3}}]])
async def test_a_malformed_call_in_the_history_is_refused(world: World, calls: Any) -> None:
    reply = await world.chat(messages=[{"role": "assistant", "tool_calls": calls}])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("messages")
