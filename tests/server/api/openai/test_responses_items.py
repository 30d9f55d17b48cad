"""The input items of /v1/responses as chat messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.openai.responses_items import LOST, chat_messages
from ebbtide.server.api.openai.responses_tools import OfferedTools


def messages(
    items: str | list[dict[str, Any]], instructions: str | None = None, tools: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(chat_messages(instructions, items, OfferedTools(tools)))
    return found


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{number}", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def written(number: int) -> dict[str, Any]:
    return {"id": f"c{number}", "function": {"name": "f", "arguments": "{}"}}


def test_a_text_is_the_users_message() -> None:
    assert messages("hi") == [{"role": "user", "content": "hi"}]


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]


def test_output_items_of_a_response_are_accepted_as_input() -> None:
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Look.", "annotations": [], "logprobs": []}],
        },
        call(1),
        call(2),
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    ]
    assert messages([{"role": "user", "content": "hi"}, *output]) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Look.",
            "reasoning_content": "why",
            "tool_calls": [written(1), written(2)],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
    ]


def test_calls_without_text_are_one_message_with_their_reasoning() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}]}
    assert messages([thought, call(1), call(2)]) == [
        {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [written(1), written(2)]}
    ]


def test_reasoning_before_a_user_message_is_left_out() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}]}
    items: list[dict[str, Any]] = [thought, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    assert messages(items) == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]


def test_encrypted_reasoning_is_accepted_and_has_no_effect() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": "a"},
    ]
    assert messages(items) == [{"role": "user", "content": "a"}]


def test_instructions_at_the_beginning_are_one_message() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
    ]
    assert messages(items, "a") == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
    ]


def test_a_summary_of_reasoning_replaces_content_that_is_encrypted() -> None:
    summary = [{"type": "summary_text", "text": "why"}]
    thought = {"type": "reasoning", "summary": summary, "content": None, "encrypted_content": "x"}
    assert messages([thought, {"role": "assistant", "content": "yes"}]) == [
        {"role": "assistant", "content": "yes", "reasoning_content": "why"}
    ]


@pytest.mark.parametrize(
    ("item", "name", "arguments"),
    [
        ({"type": "custom_tool_call", "name": "patch", "input": 'a "b"\n'}, "patch", '{"input": "a \\"b\\"\\n"}'),
        ({"type": "custom_tool_call", "name": "patch", "namespace": "fs", "input": ""}, "fs__patch", '{"input": ""}'),
        ({"type": "function_call", "name": "f", "namespace": "mcp__x__", "arguments": "{"}, "mcp__x__f", "{"),
        (
            {
                "type": "local_shell_call",
                "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None},
                "status": "completed",
            },
            "local_shell",
            '{"command": ["ls"], "env": {}}',
        ),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "shell", '{"commands": ["ls"]}'),
        (
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
            "apply_patch",
            '{"type": "delete_file", "path": "a"}',
        ),
        ({"type": "tool_search_call", "arguments": {"query": "x"}}, "tool_search", '{"query": "x"}'),
    ],
)
def test_calls_of_client_tools_are_calls_of_functions(item: dict[str, Any], name: str, arguments: str) -> None:
    outputs = {f"{item['type']}_output": "done"}
    [call, result] = messages(
        [{**item, "call_id": "c"}, *({"type": kind, "call_id": "c", "output": text} for kind, text in outputs.items())]
    )
    assert call["tool_calls"] == [{"id": "c", "function": {"name": name, "arguments": arguments}}]
    assert result == {"role": "tool", "tool_call_id": "c", "content": "done"}


def test_a_result_of_a_local_shell_is_named_by_its_id() -> None:
    items = [{"type": "local_shell_call", "id": "c", "action": {"type": "exec", "command": ["ls"]}}]
    [call, result] = messages([*items, {"type": "local_shell_call_output", "id": "c", "output": "a"}])
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "c"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "shell_call_output", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]}, '"stdout": "a"'),
        ({"type": "apply_patch_call_output", "status": "failed"}, "failed"),
        ({"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "a"}]}, "a"),
        ({"type": "tool_search_output", "tools": [{"type": "function", "name": "f"}]}, "f"),
        (
            {"type": "function_call_output", "output": [{"type": "input_image", "image_url": "data:" + "A" * 5000}]},
            '[input_image] {"image_url": "(5005 characters of data)"}',
        ),
    ],
)
def test_results_are_text(item: dict[str, Any], text: str) -> None:
    items = [item] if item["type"] != "tool_search_output" else [item, {"type": "function_call_output", "output": text}]
    found = messages([{**entry, "call_id": "c"} for entry in items])
    assert all(message["role"] == "tool" for message in found)
    assert text in found[-1]["content"]


def test_items_of_other_kinds_are_text() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "tide"}},
        {"type": "image_generation_call", "id": "ig", "result": "A" * 5000, "revised_prompt": "a cat"},
        {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}},
        {"type": "something_new", "value": [1, None], "encrypted_content": "x"},
        {"type": 5, "value": 1},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "compaction", "encrypted_content": "x", "summary": "Earlier: b."},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]},
    ]
    assert [(message["role"], message["content"]) for message in messages(items)] == [
        ("user", "hi"),
        ("assistant", '[web_search_call] {"action": {"type": "search", "query": "tide"}}'),
        ("assistant", '[image_generation_call] {"result": "(5000 characters of data)", "revised_prompt": "a cat"}'),
        ("user", '[computer_call_output] {"output": {"type": "computer_screenshot"}}'),
        ("assistant", '[something_new] {"value": [1, null]}'),
        ("assistant", '[5] {"value": 1}'),
        ("user", LOST),
        ("user", "Earlier: b."),
    ]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "user"}, "input[0].content"),
        ({"content": "hi"}, "input[0].role"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0]"),
        ({"type": "function_call", "name": "f"}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c"}, "input[0].name"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c"}, "input[0].output"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": [{"text": "x"}]}, "input[0].content[0]"),
        ({"type": "custom_tool_call", "call_id": "c", "input": "x"}, "input[0].name"),
        ({"type": "local_shell_call", "action": {}}, "input[0].call_id"),
    ],
)
def test_an_item_that_lacks_something_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(Rejected) as refusal:
        messages([item])
    assert refusal.value.param == param


def test_a_conversation_without_a_message_is_refused() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}]}
    with pytest.raises(Rejected) as refusal:
        messages([thought])
    assert refusal.value.param == "input"
