"""Tools that are not functions, on /v1/responses: which are offered, and the items of their calls."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ebbtide.errors import Rejected
from ebbtide.server.api.openai.responses_tools import OfferedTools

from ...conftest import LARGE_INFO, World, ok
from ...typed_events import typed_events
from .test_responses import prompt_of, without_ids

pytestmark = pytest.mark.anyio

RUNNER_INFO = LARGE_INFO
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "Looks.", "parameters": SCHEMA}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SPACE = {
    "type": "namespace",
    "name": "mcp__maps",
    "description": "Maps.",
    "tools": [{**WEATHER, "name": "find"}, {**PATCH, "name": "draw"}],
}
HOSTED: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": True},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["vs"]},
    {"type": "image_generation"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "computer_use_preview", "display_width": 1},
    {"type": "mcp", "server_label": "x", "server_url": "http://x"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
    {"type": "something_new"},
]
CLIENT = [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def written(name: str, arguments: Any) -> str:
    """Return a call as the model writes it."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool.function.name for tool in OfferedTools(tools).functions if tool.function]


async def ask(world: World, **fields: Any) -> httpx.Response:
    return ok(await world.client.post("/v1/responses", json={"input": "hi", **fields}))


async def output_of(world: World, **fields: Any) -> list[dict[str, Any]]:
    """Return the output, which must be the same in a stream, whose events must be those of the API."""
    body = (await ask(world, **fields)).json()
    Response.model_validate(body)
    events = typed_events((await ask(world, stream=True, **fields)).text)
    for event in events:
        EVENT.validate_python(event)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in done]
    assert done == events[-1]["response"]["output"]
    assert without_ids(done) == without_ids(body["output"])
    output: list[dict[str, Any]] = body["output"]
    return output


async def test_tools_that_only_their_provider_runs_are_left_out(world: World, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        body = (await ask(world, tools=[WEATHER, *HOSTED])).json()
    assert body["tools"] == [WEATHER, *HOSTED]
    lines = [record.getMessage() for record in caplog.records if "leaving out tools" in record.getMessage()]
    assert len(lines) == 1
    types = sorted({tool["type"] for tool in HOSTED})
    assert all(repr(kind) in lines[0] for kind in types[:5])
    assert '"weather"' in prompt_of(world)
    assert "search" not in prompt_of(world)
    await ask(world, tools=HOSTED)
    assert "tool_call" not in prompt_of(world)


def test_functions_of_a_namespace_have_qualified_names() -> None:
    assert names([WEATHER, SPACE, PATCH, *CLIENT[:2]]) == [
        "weather",
        "mcp__maps__find",
        "mcp__maps__draw",
        "apply_patch",
        "local_shell",
        "shell",
    ]
    assert names([{**SPACE, "name": "mcp__maps__"}]) == ["mcp__maps__find", "mcp__maps__draw"]


def test_names_that_functions_cannot_have_are_replaced() -> None:
    space = {**SPACE, "name": "a.b", "tools": [{**WEATHER, "name": name} for name in ("x" * 80, "x" * 81, "c d")]}
    found = names([space, PATCH, {"type": "apply_patch"}, {**PATCH, "name": "mcp__maps__find"}, SPACE])
    assert len(found) == len(set(found)) == 8
    assert all(len(name) <= 64 for name in found)
    assert found[2] == "a_b__c_d"
    assert found[4] == "apply_patch_2"


def test_the_number_of_tools_is_limited() -> None:
    assert len(names([PATCH] * 128 + HOSTED * 20)) == 128
    with pytest.raises(Rejected, match="more than 128 tools") as refusal:
        OfferedTools([PATCH] * 50_000)
    assert refusal.value.param == "tools"


async def test_a_custom_tool_is_a_function_with_one_text(world: World) -> None:
    patch = '*** Begin Patch\n+ "größer" 👩‍👩‍👧\n*** End Patch'
    world.engine.reply = "I edit.\n" + written("apply_patch", {"input": patch})
    message, call = await output_of(world, tools=[PATCH])
    assert message["content"][0]["text"].strip() == "I edit."
    assert call["id"].startswith("ctc_")
    assert call["call_id"].startswith("call_")
    assert without_ids(call) == {
        "type": "custom_tool_call",
        "status": "completed",
        "name": "apply_patch",
        "input": patch,
    }
    prompt = prompt_of(world)
    assert "Edits files.\\n\\nThe input must match this lark grammar:\\nstart: /.+/" in prompt
    assert '"required": ["input"]' in prompt


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"patch": "x"}, "x"),
        ({"input": "x", "why": "y"}, "x"),
        ({"a": 1}, '{"a": 1}'),
        ({"input": ["x"]}, '{"input": ["x"]}'),
    ],
)
async def test_input_under_another_name_is_not_lost(world: World, arguments: Any, text: str) -> None:
    world.engine.reply = written("apply_patch", arguments)
    [call] = await output_of(world, tools=[PATCH])
    assert call["input"] == text


async def test_a_truncated_input_is_what_the_model_wrote(world: World) -> None:
    world.engine.reply, world.engine.finish = written("apply_patch", {"input": "abc"}).partition('c"')[0], "length"
    [call] = await output_of(world, tools=[PATCH])
    assert (call["status"], call["input"]) == ("incomplete", '{"input": "ab')


async def test_the_input_of_a_custom_tool_is_streamed(world: World) -> None:
    world.engine.reply = written("apply_patch", {"input": "abc"})
    events = typed_events((await ask(world, tools=[PATCH], stream=True)).text)
    [added, delta, done, item] = events[2:-1]
    assert added["item"]["input"] == ""
    assert added["item"]["status"] == "in_progress"
    assert (delta["type"], delta["delta"]) == ("response.custom_tool_call_input.delta", "abc")
    assert (done["type"], done["input"]) == ("response.custom_tool_call_input.done", "abc")
    assert delta["item_id"] == done["item_id"] == item["item"]["id"]


async def test_a_call_in_a_namespace_comes_back_with_it(world: World) -> None:
    world.engine.reply = written("mcp__maps__find", {"city": "x"}) + written("mcp__maps__draw", {"input": "y"})
    found, drawn = await output_of(world, tools=[WEATHER, SPACE])
    assert without_ids(found) == {
        "type": "function_call",
        "status": "completed",
        "name": "find",
        "namespace": "mcp__maps",
        "arguments": '{"city": "x"}',
    }
    assert (drawn["type"], drawn["namespace"], drawn["name"], drawn["input"]) == (
        "custom_tool_call",
        "mcp__maps",
        "draw",
        "y",
    )
    assert "Maps.\\n\\nLooks." in prompt_of(world)


@pytest.mark.parametrize(
    ("tool", "arguments", "fields"),
    [
        (
            {"type": "local_shell"},
            {"command": ["ls", "-l"], "type": "other"},
            {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"], "env": {}}},
        ),
        (
            {"type": "shell", "environment": {"type": "local"}},
            {"commands": ["ls"]},
            {"type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        ),
        (
            {"type": "apply_patch"},
            {"type": "create_file", "path": "a", "diff": "+b"},
            {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a", "diff": "+b"}},
        ),
        (
            {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": SCHEMA},
            {"query": "x"},
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
        ),
    ],
)
async def test_other_tools_that_the_client_runs(world: World, tool: Any, arguments: Any, fields: Any) -> None:
    world.engine.reply = written(tool["type"], arguments)
    [call] = await output_of(world, tools=[tool])
    assert without_ids(call) == {"status": "completed", **fields}


async def test_a_truncated_shell_call_has_no_command(world: World) -> None:
    world.engine.reply, world.engine.finish = written("local_shell", {"command": ["ls"]}).partition("ls")[0], "length"
    [call] = await output_of(world, tools=[{"type": "local_shell"}])
    assert call["status"] == "incomplete"
    assert call["action"] == {"type": "exec", "command": [], "env": {}}


async def test_the_history_has_the_names_that_the_model_saw(world: World) -> None:
    clash = {"type": "apply_patch"}
    items = [
        {"role": "user", "content": "hi"},
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "x"},
        {"type": "apply_patch_call", "call_id": "2", "operation": {"type": "delete_file", "path": "y"}},
        {"type": "function_call", "call_id": "3", "name": "find", "namespace": "mcp__maps", "arguments": "{}"},
    ]
    await ask(world, input=items, tools=[PATCH, clash, SPACE])
    prompt = prompt_of(world)
    assert '{"name": "apply_patch", "arguments": {"input": "x"}}' in prompt
    assert '{"name": "apply_patch_2", "arguments": {"type": "delete_file", "path": "y"}}' in prompt
    assert '{"name": "mcp__maps__find", "arguments": {}}' in prompt


async def test_tools_that_items_bring_are_offered(world: World) -> None:
    world.engine.reply = written("mcp__maps__find", {})
    items = [
        {"type": "additional_tools", "role": "developer", "tools": [WEATHER, PATCH]},
        {"role": "user", "content": "hi"},
        {"type": "tool_search_call", "call_id": "1", "execution": "client", "arguments": {}},
        {"type": "tool_search_output", "call_id": "1", "execution": "client", "tools": [SPACE, WEATHER]},
    ]
    [call] = await output_of(world, input=items, tools=[WEATHER])
    assert call["namespace"] == "mcp__maps"
    for name in ("weather", "apply_patch", "mcp__maps__draw"):
        assert prompt_of(world).count(f'"name": "{name}", "description"') == 1


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "local_shell"}, "local_shell"),
        ({"type": "function", "name": "find", "namespace": "mcp__maps"}, "mcp__maps__find"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [HOSTED[0], {"type": "custom", "name": "apply_patch"}],
            },
            "apply_patch",
        ),
    ],
)
async def test_a_choice_names_the_clients_tool(world: World, choice: Any, name: str) -> None:
    tools: list[dict[str, Any]] = [WEATHER, PATCH, SPACE, *CLIENT, *HOSTED]
    assert OfferedTools(tools).choice(choice) in (
        {"type": "function", "name": name},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]},
    )
    await ask(world, tools=tools, tool_choice=choice)
    assert world.engine.requests[-1].grammar


async def test_a_choice_of_tools_that_were_left_out(world: World) -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": HOSTED[:2]}
    await ask(world, tools=[WEATHER, *HOSTED], tool_choice=allowed)
    assert "weather" not in prompt_of(world)
    for choice in ({**allowed, "mode": "required"}, {"type": "web_search"}):
        body = {"input": "hi", "tools": [WEATHER, *HOSTED], "tool_choice": choice}
        reply = await world.client.post("/v1/responses", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
