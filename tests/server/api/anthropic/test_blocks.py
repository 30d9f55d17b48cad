"""Anthropic's messages, which consist of blocks, become chat messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.anthropic.blocks import Message, chat_messages


def converted(messages: list[dict[str, Any]], system: Any = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(chat_messages(system, msgspec.convert(messages, list[Message])))
    return found


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}


def test_the_system_prompt_comes_first_and_its_blocks_stay_apart() -> None:
    user = {"role": "user", "content": "hi"}
    assert converted([user], "S") == [{"role": "system", "content": "S"}, user]
    assert converted([user], [text("S"), text("T")]) == [{"role": "system", "content": "S\n\nT"}, user]
    assert converted([user], "") == [user]


def test_an_assistants_blocks_are_one_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "why", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        text("Look"),
        text("."),
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
        {"type": "tool_use", "id": "t2", "name": "clock", "input": {}},
    ]
    assert converted([{"role": "assistant", "content": blocks}]) == [
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning_content": "why",
            "tool_calls": [
                {"id": "t1", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}},
                {"id": "t2", "function": {"name": "clock", "arguments": "{}"}},
            ],
        }
    ]


def test_results_are_messages_in_their_place() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
        {"type": "tool_result", "tool_use_id": "t2", "content": [text("a"), text("b")], "is_error": True},
        {"type": "tool_result", "tool_use_id": "t3"},
        text("Well?"),
        text("So?"),
    ]
    assert converted([{"role": "user", "content": blocks}]) == [
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "tool", "tool_call_id": "t2", "content": "a\n\nb"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "Well?\n\nSo?"},
    ]


def test_a_message_of_no_blocks_is_empty() -> None:
    assert converted([{"role": "user", "content": []}]) == [{"role": "user", "content": ""}]
    assert converted([{"role": "assistant", "content": []}]) == [{"role": "assistant", "content": ""}]


def test_the_system_may_speak_later_too() -> None:
    assert converted([{"role": "system", "content": [text("S")]}]) == [{"role": "system", "content": "S"}]


@pytest.mark.parametrize(("given", "arguments"), [({}, "{}"), (None, "{}"), ('{"ci', '{"ci'), ([1], "[1]"), (7, "7")])
def test_the_input_of_a_truncated_call_is_not_an_error(given: Any, arguments: str) -> None:
    [message] = converted(
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": given}]}]
    )
    assert message["tool_calls"] == [{"id": "t", "function": {"name": "f", "arguments": arguments}}]


def test_blocks_of_other_kinds_are_text() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "tide"}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"type": "web_search_result", "title": "Tides", "encrypted_content": "x"}],
    }
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 5000}}
    parts = [text("a"), image, {"type": "tool_reference", "tool_name": "f"}]
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": [search, found, text("Here:")]},
        {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}, text("ok")]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": parts}]},
    ]
    assert [message["content"] for message in converted(messages)] == [
        '[server_tool_use] {"name": "web_search", "input": {"query": "tide"}}'
        '[web_search_tool_result] {"content": [{"type": "web_search_result", "title": "Tides"}]}Here:',
        '[container_upload] {"file_id": "f"}\n\nok',
        'a\n\n[image] {"source": {"type": "base64", "data": "(5000 characters of data)"}}'
        '\n\n[tool_reference] {"tool_name": "f"}',
    ]


@pytest.mark.parametrize(
    ("role", "block", "says"),
    [
        ("user", {"type": "document", "source": {}}, "'messages[0].content[0]' has the type 'document'"),
        ("user", {"type": "tool_use", "id": "t", "name": "f", "input": {}}, "tool_use"),
        ("user", {"type": "text"}, "needs a 'text'"),
        ("user", {"type": "tool_result", "content": "x"}, "needs a 'tool_use_id'"),
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"text": "a"}]}, "content[0].content[0].type"),
        ("user", {"type": "text", "text": 5}, "messages[0].content[0].text"),
        ("user", {"text": "a"}, "messages[0].content[0].type"),
        ("user", {"type": 5}, "messages[0].content[0].type"),
        ("assistant", {"type": "tool_result", "tool_use_id": "t"}, "tool_result"),
        ("assistant", {"type": "tool_use", "id": "t"}, "needs an 'id' and a 'name'"),
        ("system", {"type": "image"}, "'messages[0].content[0]' has the type 'image'"),
    ],
)
def test_an_unsupported_block_is_named(role: str, block: dict[str, Any], says: str) -> None:
    with pytest.raises(Rejected) as refusal:
        converted([{"role": role, "content": [block]}])
    assert says in refusal.value.message
