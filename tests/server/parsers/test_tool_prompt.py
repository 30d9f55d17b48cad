"""The description of tools for templates without tool support."""

from __future__ import annotations

import json
from typing import Any

from ebbtide.server.parsers.tool_fields import ToolOptions
from ebbtide.server.parsers.tool_prompt import calls_as_text, with_tools

TOOL = {"type": "function", "function": {"name": "f", "description": "ü", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "g", "description": "", "parameters": {"type": "object"}}}
OPTIONS = ToolOptions([TOOL, OTHER], {"f": {}, "g": {}})
USER = {"role": "user", "content": "hi"}


def test_the_functions_join_the_system_message() -> None:
    [system, user] = with_tools([{"role": "system", "content": "Be kind."}, USER], OPTIONS, takes_system=True)
    assert system["content"].startswith("Be kind.\n\n")
    assert json.dumps(TOOL["function"], ensure_ascii=False) in system["content"]
    assert "<tool_call>" in system["content"]
    assert user == USER


def test_the_functions_become_a_system_message_if_there_is_none() -> None:
    assert [message["role"] for message in with_tools([USER], OPTIONS, takes_system=True)] == ["system", "user"]


def test_the_functions_join_the_user_message_if_system_messages_are_refused() -> None:
    [user] = with_tools([USER], OPTIONS, takes_system=False)
    assert user["role"] == "user"
    assert user["content"].endswith("\n\nhi")
    assistant = {"role": "assistant", "content": "x"}
    assert [m["role"] for m in with_tools([assistant], OPTIONS, takes_system=False)] == ["user", "assistant"]


def test_the_prompt_describes_the_form_of_a_forced_call() -> None:
    [required, _] = with_tools([USER], ToolOptions([TOOL, OTHER], {"f": {}, "g": {}}, required=True), takes_system=True)
    assert "JSON list" in required["content"]
    [named, _] = with_tools([USER], ToolOptions([TOOL, OTHER], {"g": {}}, required=True, named="g"), takes_system=True)
    assert '"g"' in named["content"]
    assert '"f"' not in named["content"]


def test_earlier_calls_and_results_are_text() -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "ü"}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{broken"}},
    ]
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": "Look:", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "assistant", "content": "", "tool_calls": calls[:1]},
        {"role": "tool", "content": "three"},
    ]
    one = '<tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>'
    two = '<tool_call>\n{"name": "g", "arguments": {broken}\n</tool_call>'
    assert calls_as_text(messages) == [
        USER,
        {"role": "assistant", "content": f"Look:\n{one}\n{two}"},
        {
            "role": "user",
            "content": "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>",
        },
        {"role": "assistant", "content": one},
        {"role": "user", "content": "<tool_response>\nthree\n</tool_response>"},
    ]
