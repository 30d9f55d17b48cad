"""Reasoning on the chat route."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.server.parsers.chat_template_profile import ChatTemplateProfile
from ebbtide.server.parsers.reasoning import REASONING
from ebbtide.tokenization.vocabulary import SIM_ASSISTANT, SIM_EOS, SIM_USER

from ...conftest import LARGE_INFO, World, ok
from ...structured.test_structured import matches
from ..test_streams import events
from .test_chat_tools import as_joined, joined

pytestmark = pytest.mark.anyio

RUNNER_INFO = LARGE_INFO
PROFILE = ChatTemplateProfile(reasoning=REASONING["think"])
REPLY = "<think>\nwhy 日\n\nso\n</think>\n\nyes 👩‍👩‍👧"


async def whole(world: Any, reply: str = REPLY, **fields: Any) -> dict[str, Any]:
    world.engine.reply = reply
    answer = await world.chat(**fields)
    body: dict[str, Any] = ok(answer).json()
    return body


async def streamed(world: Any, reply: str = REPLY, **fields: Any) -> list[dict[str, Any]]:
    world.engine.reply = reply
    answer = await world.chat(stream=True, **fields)
    return events(ok(answer).text)[:-1]


async def test_reasoning_has_its_own_fields_and_count(world: World) -> None:
    body = await whole(world)
    message = body["choices"][0]["message"]
    assert message["content"] == "yes 👩‍👩‍👧"
    assert message["reasoning_content"] == message["reasoning"] == "why 日\n\nso"
    usage = body["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("reply", [REPLY, "<think>only", "no reasoning", "<think>\n\n</think>\n\nempty", "<thi", "\n"])
async def test_a_stream_equals_the_response_without_stream(world: World, reply: str, finish: str) -> None:
    world.engine.finish = finish
    chunks = await streamed(world, reply)
    assert joined([chunk["choices"][0] for chunk in chunks]) == as_joined((await whole(world, reply))["choices"][0])


async def test_a_streamed_delta_has_both_names(world: World) -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in await streamed(world)]
    assert deltas[0] == {"role": "assistant", "content": ""}
    shown = [delta for delta in deltas if "reasoning" in delta]
    assert len(shown) > 3
    assert all(delta["reasoning"] == delta["reasoning_content"] and "content" not in delta for delta in shown)


async def test_the_last_usage_counts_reasoning_too(world: World) -> None:
    chunks = await streamed(world, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == (await whole(world))["usage"]


async def test_logprobs_of_reasoning_are_not_lost(world: World) -> None:
    reply = "<think>\nso\n</think>\n\nyes"
    chunks = await streamed(world, reply, logprobs=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert "".join(entry["token"] for entry in entries) == reply
    before = choices[: next(i for i, choice in enumerate(choices) if choice["delta"].get("content") == "y")]
    assert any(
        choice["delta"] == {"reasoning_content": "s", "reasoning": "s"} and choice["logprobs"] for choice in before
    )
    body = await whole(world, reply, logprobs=True)
    assert body["choices"][0]["logprobs"]["content"] == entries


async def test_reasoning_can_stay_in_the_text(world: World) -> None:
    body = await whole(world, separate_reasoning=False)
    message = body["choices"][0]["message"]
    assert message["content"] == REPLY
    assert "reasoning" not in message


async def test_reasoning_can_be_left_out(world: World) -> None:
    body = await whole(world, include_reasoning=False)
    message = body["choices"][0]["message"]
    assert message["content"] == "yes 👩‍👩‍👧"
    assert "reasoning" not in message
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    deltas = [chunk["choices"][0]["delta"] for chunk in await streamed(world, include_reasoning=False)]
    assert not any("reasoning" in delta for delta in deltas)


async def test_reasoning_can_come_in_one_piece(world: World) -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in await streamed(world, stream_reasoning=False)]
    assert [delta["reasoning"] for delta in deltas if "reasoning" in delta] == ["why 日\n\nso"]


async def test_an_answer_may_continue_reasoning_that_has_begun(world: World) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>be"}]
    body = await whole(world, "cause</think>yes", messages=messages, continue_final_message=True)
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("cause", "yes")
    prompt = [SIM_USER, ord("q"), SIM_EOS, SIM_ASSISTANT, *b"<think>be"]
    assert world.engine.requests[0].prompt == prompt


async def test_a_constraint_begins_behind_the_reasoning(world: World) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"}]
    tool = {"type": "function", "function": {"name": "f"}}
    for fields in ({"response_format": {"type": "json_object"}}, {"tools": [tool], "tool_choice": "required"}):
        reply = await world.chat(messages=messages, continue_final_message=True, **fields)
        assert reply.status_code == 200, reply.text
    json_object, call = (request.grammar for request in world.engine.requests)
    assert matches(json_object, "why not?</think>\n\n{}")
    assert not matches(json_object, "why not?</think>yes")
    assert matches(call, 'so</think>[{"name": "f", "arguments": {}}]')
    assert not matches(call, "so</think>{}")


async def test_a_model_may_reason_before_a_constraint_or_not(world: World) -> None:
    await world.chat(response_format={"type": "json_object"})
    closed = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\n\n</think>"}]
    await world.chat(messages=closed, continue_final_message=True, response_format={"type": "json_object"})
    free, past = (request.grammar for request in world.engine.requests)
    assert matches(free, "{}")
    assert matches(free, "<think>\nwhy\n</think>\n\n{}")
    assert not matches(free, "why</think>{}")
    assert matches(past, "{}")
    assert not matches(past, "<think>why</think>{}")


async def test_markers_in_a_message_do_not_start_reasoning(world: World) -> None:
    body = await whole(world, "yes", messages=[{"role": "user", "content": "<think>"}])
    assert body["choices"][0]["message"]["content"] == "yes"


async def test_earlier_reasoning_is_accepted(world: World) -> None:
    for name in ("reasoning", "reasoning_content"):
        messages = [{"role": "assistant", "content": "a", name: "why"}, {"role": "user", "content": "q"}]
        assert (await world.chat(messages=messages)).status_code == 200
