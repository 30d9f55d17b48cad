"""POST /v1/messages and its token count."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from ebbtide.config import ServerConfig
from ebbtide.server.api.anthropic.client_tools import OfferedTools
from ebbtide.server.api.anthropic.messages_request import MessagesBody, chat_body
from ebbtide.server.http.strict_json import convert, parse_arguments
from ebbtide.server.parsers.chat_template_profile import ChatTemplateProfile
from ebbtide.server.parsers.reasoning import REASONING

from ...conftest import LARGE_INFO, World
from ...typed_events import CALL, REPLIES, TypedRoute, typed_events

pytestmark = pytest.mark.anyio

RUNNER_INFO = LARGE_INFO
PROFILE = ChatTemplateProfile(reasoning=REASONING["think"])
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Looks.", "input_schema": SCHEMA}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


ROUTE = TypedRoute("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100})
ask, whole, streamed = ROUTE.ask, ROUTE.whole, ROUTE.streamed


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a client builds from the events."""
    message = events[0]["message"]
    texts: list[str] = []
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(texts)
                message["content"].append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                assert event["index"] == len(texts) - 1, "blocks do not mix"
                delta = {key: value for key, value in event["delta"].items() if key != "type"}
                texts[-1] += next(iter(delta.values()))
            case "content_block_stop":
                block = message["content"][event["index"]]
                key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
                text = texts[event["index"]]
                block[key] = text if key != "input" else parsed(text)
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
    assert events[-1] == {"type": "message_stop"}
    return dict(message)


def parsed(text: str) -> Any:
    return parse_arguments(text) or {}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    return {key: value for key, value in message.items() if key != "id"} | {"content": content}


async def test_a_message_has_its_stop_reason_and_usage(world: World) -> None:
    reply = await ask(world, system="Be brief.", metadata={"user_id": "u"})
    prompt_len = len(world.engine.requests[0].prompt)
    assert reply.json() == {
        "id": f"msg_{reply.headers['x-request-id']}",
        "type": "message",
        "role": "assistant",
        "model": "org/sim",
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt_len - 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 6,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


async def test_sampling_fields_reach_the_engine(world: World) -> None:
    await whole(world, temperature=0.5, top_p=0.25, top_k=5, max_tokens=7, stop_sequences=["STOP", "END"])
    request = world.engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.25, 5, 7)
    assert request.text.stop == ("STOP", "END")


async def test_events_come_in_the_order_of_the_api(world: World) -> None:
    events = await streamed(world)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 6,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0]["message"]
    assert (start["content"], start["stop_reason"], start["stop_sequence"]) == ([], None, None)
    assert start["usage"]["cache_read_input_tokens"] == 3
    assert events[1]["content_block"] == {"type": "text", "text": ""}


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("reply", [*REPLIES, CALL[:-30]])
async def test_a_stream_equals_the_response_without_stream(world: World, reply: str, finish: str) -> None:
    world.engine.reply, world.engine.finish = reply, finish
    answer = await whole(world, tools=[TOOL])
    assert without_ids(joined(await streamed(world, tools=[TOOL]))) == without_ids(answer)


async def test_thinking_and_tool_use_are_blocks_of_their_own(world: World) -> None:
    world.engine.reply = f"<think>why</think>Look.\n{CALL}"
    body = await whole(world, tools=[TOOL])
    thinking, text, use = body["content"]
    assert thinking == {"type": "thinking", "thinking": "why", "signature": ""}
    assert text["text"].startswith("Look.")
    assert use.pop("id").startswith("call_")
    assert use == {"type": "tool_use", "name": "weather", "input": {"city": "Zürich 👩‍👩‍👧"}}
    assert body["stop_reason"] == "tool_use"
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize("city", ["1e999", "-1e999", "NaN", "[" * 200 + "]" * 200])
async def test_arguments_that_are_not_strict_json_are_not_passed_as_input(world: World, city: str) -> None:
    world.engine.reply = CALL.replace('"Zürich 👩‍👩‍👧"', city)
    assert city in world.engine.reply
    answer = await whole(world, tools=[TOOL])
    assert [block["input"] for block in answer["content"] if block["type"] == "tool_use"] in ([], [{}])
    assert without_ids(joined(await streamed(world, tools=[TOOL]))) == without_ids(answer)


async def test_an_answer_without_text_has_no_block(world: World) -> None:
    world.engine.answer = lambda request: world.engine.emit(request.rids[0], "", 1, finish="stop")
    assert (await whole(world))["content"] == []
    assert [event["type"] for event in await streamed(world)] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("matched", "finish", "reason", "sequence"),
    [("END", "stop", "stop_sequence", "END"), (None, "length", "max_tokens", None), (256, "stop", "end_turn", None)],
)
async def test_the_stop_reason_states_the_cause_of_the_end(
    world: World, matched: str | int | None, finish: str, reason: str, sequence: str | None
) -> None:
    world.engine.answer = lambda request: world.engine.emit(request.rids[0], "x", 1, finish=finish, matched=matched)
    for message in (await whole(world), joined(await streamed(world))):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


async def test_an_error_in_a_stream_is_an_event_of_its_own(world: World) -> None:
    world.engine.answer = world.engine.abort_after_a_token
    *events, error = await streamed(world)
    assert error == {"type": "error", "error": {"type": "api_error", "message": "no room"}}
    assert events[-1]["delta"] == {"type": "text_delta", "text": "x"}


class TestSilentBefore:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(keep_alive_s=0.01)

    async def test_pings_are_sent_during_silence(self, world: World) -> None:
        def answer(request: Any) -> None:
            emit = world.engine.emit
            asyncio.get_running_loop().call_later(0.2, lambda: emit(request.rids[0], "x", 1, finish="stop"))

        world.engine.answer = answer
        reply = await ask(world, stream=True)
        assert reply.text.startswith('event: ping\ndata: {"type": "ping"}\n\n')
        assert typed_events(reply.text)[0]["type"] == "message_start"


async def test_a_schema_becomes_a_grammar(world: World) -> None:
    await whole(world, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert world.engine.requests[0].grammar


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
async def test_a_required_call_is_forced_by_a_grammar(world: World, choice: Any) -> None:
    await whole(world, tools=[TOOL], tool_choice=choice)
    assert world.engine.requests[0].grammar


async def test_tools_that_the_client_runs_are_offered_with_their_schemas(world: World) -> None:
    tools: list[dict[str, Any]] = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "custom", **TOOL},
    ]
    world.engine.reply = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    [block] = (await whole(world, tools=tools))["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "bash", {"command": "ls"})
    prompt = bytes(token for token in world.engine.requests[0].prompt if token < 256).decode()
    for tool in tools:
        assert f'{{"name": "{tool["name"]}", "description": "' in prompt
    for argument in ("restart", "insert_text", "new_path", "city"):
        assert f'"{argument}": {{"type"' in prompt
    forced = {"type": "tool", "name": "bash"}
    await whole(world, tools=tools, tool_choice=forced)
    assert world.engine.requests[-1].grammar


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
async def test_a_stored_conversation_is_refused_in_a_way_that_clients_know(world: World, thread: Any) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "thread": thread}
    for path, more in (("/v1/messages", {"max_tokens": 5}), ("/v1/messages/count_tokens", {})):
        reply = await world.client.post(path, json=body | more)
        error = reply.json()["error"]
        assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["details"]["error_code"] == "thread_unsupported_request"
    assert (await ask(world, thread=None)).status_code == 200


async def test_tools_that_anthropic_runs_are_left_out(world: World, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    left_out = [
        WEB_SEARCH,
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ]
    for _ in range(2):
        await whole(world, tools=[*left_out, TOOL])
    plain = await whole(world, tools=[TOOL])
    first, _, last = (request.prompt for request in world.engine.requests)
    assert first == last
    lines = [record.getMessage() for record in caplog.records if "leaving out tools" in record.getMessage()]
    assert len(lines) == 1
    counted = await world.client.post(
        "/v1/messages/count_tokens", json={"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL, WEB_SEARCH]}
    )
    usage = plain["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    await whole(world, tools=[WEB_SEARCH])
    await whole(world)
    assert world.engine.requests[-1].prompt == world.engine.requests[-2].prompt


@pytest.mark.parametrize(("kind", "opens"), [("enabled", True), ("adaptive", True), ("disabled", False)])
async def test_the_template_switches_thinking(kind: str, *, opens: bool) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = convert({"messages": messages, "max_tokens": 1, "thinking": {"type": kind}}, MessagesBody)
    assert chat_body(body, OfferedTools(None)).chat_template_kwargs == {"enable_thinking": opens, "thinking": opens}


async def test_thinking_can_be_left_out(world: World) -> None:
    world.engine.reply = "<think>why</think>yes"
    body = await whole(world, thinking={"type": "adaptive", "display": "omitted"})
    assert [block["type"] for block in body["content"]] == ["text"]
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize(
    ("choice", "chat_choice", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "none"}, "none", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, None),
    ],
)
async def test_a_tool_choice_is_converted_to_that_of_a_chat(choice: Any, chat_choice: Any, parallel: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = convert({"messages": messages, "max_tokens": 1, "tools": [TOOL], "tool_choice": choice}, MessagesBody)
    chat = chat_body(body, OfferedTools(body.tools))
    assert (chat.tool_choice, chat.parallel_tool_calls) == (chat_choice, parallel)
    function = {"name": "weather", "description": "Looks.", "parameters": SCHEMA}
    assert msgspec.to_builtins(chat.tools) == [{"type": "function", "function": function | {"strict": None}}]


@pytest.mark.parametrize("words", ["", "So", [{"type": "text", "text": "So"}], []])
async def test_an_assistant_message_at_the_end_is_continued(world: World, words: Any) -> None:
    question = {"role": "user", "content": "hi"}
    await whole(world, messages=[question])
    await whole(world, messages=[question, {"role": "assistant", "content": words}])
    plain, begun = (request.prompt for request in world.engine.requests)
    assert begun == plain + list(b"So" if words else b"")


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "maximum context length"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            400,
            "'messages[0].content[0]' has the type 'image'",
        ),
        ({"system": [IMAGE]}, 400, "system[0]"),
        ({"temperature": 1.5}, 400, "temperature"),
        ({"top_k": -1}, 400, "top_k"),
        ({"tools": [{"type": "bash_20250124"}]}, 400, "tools[0].name"),
        ({"tools": [WEB_SEARCH, {"name": "f"}]}, 400, "'tools[1]' needs an 'input_schema'"),
        ({"tools": [WEB_SEARCH, {**TOOL, "name": "a b"}]}, 400, "'tools[1]' has the name"),
        ({"tools": [WEB_SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, 400, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, 400, "twice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, 400, "'name'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, 400, "tool_choice"),
        ({"output_config": {"effort": "much"}}, 400, "output_config"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "mcp_servers"),
        ({"model": "claude"}, 404, "'claude'"),
    ],
)
async def test_unsupported_requests_are_refused_in_anthropics_form(
    world: World, fields: dict[str, Any], status: int, says: str
) -> None:
    reply = await ask(world, **fields)
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"type", "error"}
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert says in body["error"]["message"]
    assert not world.engine.requests


async def test_malformed_json_and_wrong_methods_are_refused_in_anthropics_form(world: World) -> None:
    assert (await world.client.post("/v1/messages", content=b"{")).json()["type"] == "error"
    assert (await world.client.get("/v1/messages")).json()["error"]["type"] == "invalid_request_error"


async def test_the_count_is_that_of_the_prompt(world: World) -> None:
    fields = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "grüß"}, {"role": "assistant", "content": "yes"}],
        "tools": [TOOL],
    }
    reply = await world.client.post("/v1/messages/count_tokens", json=fields)
    assert not world.engine.requests
    await whole(world, **fields)
    assert reply.json() == {"input_tokens": len(world.engine.requests[0].prompt)}


async def test_a_prompt_that_does_not_fit_can_be_counted(world: World) -> None:
    messages = [{"role": "user", "content": "x" * 9000}]
    reply = await world.client.post("/v1/messages/count_tokens", json={"messages": messages})
    assert reply.json()["input_tokens"] > 9000
    assert (await ask(world, messages=messages)).status_code == 400


async def test_a_count_is_refused_like_a_message(world: World) -> None:
    for fields in ({}, {"messages": [{"role": "user", "content": [IMAGE]}]}, {"messages": [], "model": "m"}):
        reply = await world.client.post("/v1/messages/count_tokens", json=fields)
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"
