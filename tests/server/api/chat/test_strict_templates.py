"""Conversations that a strict chat template rejects as they are, on every route that renders messages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ...chat_templates import (
    DROPS_SYSTEMS,
    FIRST_SYSTEM_ALTERNATE,
    HERMES,
    ITEMS,
    ITEMS_METHOD,
    KEYS,
    MISTRAL_ALTERNATE,
    NO_SYSTEM,
    NO_SYSTEM_ALTERNATE,
    PLAIN,
)
from ...conftest import World
from .conftest import Model

pytestmark = pytest.mark.anyio

TEMPLATES = {
    "plain": PLAIN,
    "hermes": HERMES,
    "items": ITEMS,
    "items method": ITEMS_METHOD,
    "keys": KEYS,
    "no system": NO_SYSTEM,
    "drops systems": DROPS_SYSTEMS,
    "gemma 2": NO_SYSTEM_ALTERNATE,
    "gemma 3": FIRST_SYSTEM_ALTERNATE,
    "mistral": MISTRAL_ALTERNATE,
}
EACH_TEMPLATE = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)

TEXTS = re.compile(r"text-\d+")
CUT = '{"city": "Zür'
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
# Two system messages at the beginning, late ones, repeated roles, a user message after a result.
ROLES = "system system user user assistant call tool tool user system user assistant assistant system user"


def conversation() -> list[dict[str, Any]]:
    """Return messages with these roles, each with a text of its own."""
    messages: list[dict[str, Any]] = []
    for number, role in enumerate(ROLES.split()):
        message: dict[str, Any] = {"role": role, "content": f"text-{number}"}
        if role == "call":
            calls = [{"id": f"call_{i}", "type": "function", "function": {"name": "weather"}} for i in range(2)]
            message |= {"role": "assistant", "tool_calls": calls}
        if role == "tool":
            message["tool_call_id"] = f"call_{number - 6}"
        messages.append(message)
    return messages


def check_nothing_lost(prompt: str, template: str) -> None:
    """Check that the prompt has each text once, and those of users, results and answers in their order."""
    found = TEXTS.findall(prompt)
    expected = [f"text-{number}" for number in range(len(ROLES.split()))]
    if template == MISTRAL_ALTERNATE:  # does not render the text of a message with calls
        expected = [text for text in expected if text not in ("text-4", "text-5")]
    assert sorted(found) == sorted(expected)
    systems = {f"text-{number}" for number, role in enumerate(ROLES.split()) if role == "system"}
    assert [text for text in found if text not in systems] == [text for text in expected if text not in systems]


@EACH_TEMPLATE
async def test_a_chat_with_any_order_of_roles(model: tuple[World, Model], template: str) -> None:
    world, scripted = model
    scripted.text = "fine"
    for tools in (None, CHAT_TOOLS):
        reply = await world.chat(messages=conversation(), tools=tools)
        assert reply.status_code == 200, reply.text
        check_nothing_lost(scripted.prompt, template)


@EACH_TEMPLATE
async def test_tokenize_render_and_a_continued_answer(model: tuple[World, Model], template: str) -> None:
    world, scripted = model
    scripted.text = "fine"
    messages = [*conversation(), {"role": "assistant", "content": "text-15"}]
    body = {"messages": messages, "continue_final_message": True}
    reply = await world.client.post("/tokenize", json=body)
    assert reply.status_code == 200, reply.text
    chat = await world.chat(**body)
    assert chat.status_code == 200, chat.text
    assert reply.json()["count"] == chat.json()["usage"]["prompt_tokens"]
    assert scripted.prompt.endswith("text-15")
    rendered = await world.client.post("/v1/chat/completions/render", json=body)
    assert rendered.json()["token_ids"] == reply.json()["tokens"]


@EACH_TEMPLATE
async def test_messages_with_late_instructions(model: tuple[World, Model], template: str) -> None:
    world, scripted = model
    scripted.text = "fine"
    result = {"type": "tool_result", "tool_use_id": "t", "content": "text-4"}
    body = {
        "max_tokens": 5,
        "system": [{"type": "text", "text": "text-0"}],
        "messages": [
            {"role": "user", "content": "text-1"},
            {"role": "system", "content": "text-2"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"a": 1}}]},
            {"role": "user", "content": [result, {"type": "text", "text": "text-5"}]},
            {"role": "system", "content": "text-6"},
        ],
        "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}],
    }
    reply = await world.client.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert sorted(TEXTS.findall(scripted.prompt)) == [f"text-{number}" for number in (0, 1, 2, 4, 5, 6)]
    counted = await world.client.post(
        "/v1/messages/count_tokens", json={key: value for key, value in body.items() if key != "max_tokens"}
    )
    assert counted.json()["input_tokens"] == reply.json()["usage"]["input_tokens"]


@EACH_TEMPLATE
async def test_responses_with_late_instructions(model: tuple[World, Model], template: str) -> None:
    world, scripted = model
    scripted.text = "fine"
    items = [
        {"role": "developer", "content": "text-1"},
        {"role": "user", "content": "text-2"},
        {"role": "user", "content": "text-3"},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": CUT},
        {"type": "function_call_output", "call_id": "c", "output": "text-4"},
        {"role": "developer", "content": "text-5"},
        {"role": "user", "content": "text-6"},
    ]
    reply = await world.client.post("/v1/responses", json={"instructions": "text-0", "input": items})
    assert reply.status_code == 200, reply.text
    assert sorted(TEXTS.findall(scripted.prompt)) == [f"text-{number}" for number in range(7)]


@pytest.mark.parametrize(
    "template",
    [
        text.removesuffix("<|assistant|>")
        for text in (PLAIN, DROPS_SYSTEMS, NO_SYSTEM_ALTERNATE, FIRST_SYSTEM_ALTERNATE)
    ],
    ids=["plain", "drops systems", "gemma 2", "gemma 3"],
)
async def test_a_session_turn_with_instructions(model: tuple[World, Model]) -> None:
    world, scripted = model
    scripted.text = "fine"
    messages = [{"role": role, "content": f"text-{number}"} for number, role in enumerate(("system", "user", "user"))]
    reply = await world.chat(session_id="s", messages=messages)
    assert reply.status_code == 200, reply.text
    request = world.engine.requests[-1]
    pieces = world.state.prompts.pieces
    for ids in (request.prompt, request.session.continuation):
        assert TEXTS.findall(b"".join(pieces[i] for i in ids).decode()) == ["text-0", "text-1", "text-2"]


@EACH_TEMPLATE
async def test_a_call_with_broken_arguments(model: tuple[World, Model], template: str) -> None:
    world, scripted = model
    scripted.text = "fine"
    for arguments in (CUT, "[1]", "null", "weather in Zürich", "7", '{"a": NaN}'):
        calls = [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}]
        messages = [
            {"role": "user", "content": "text-0"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": "text-1"},
        ]
        for tools in (None, CHAT_TOOLS):
            reply = await world.chat(messages=messages, tools=tools)
            assert reply.status_code == 200, (arguments, reply.text)
            assert TEXTS.findall(scripted.prompt) == ["text-0", "text-1"]
            assert scripted.prompt.count("weather") >= (1 if tools is None else 2)
