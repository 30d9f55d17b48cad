"""The input items of /v1/responses as chat messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.openai.responses_items import InputItem, chat_messages


def messages(items: str | list[dict[str, Any]], instructions: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(
        chat_messages(instructions, msgspec.convert(items, str | list[InputItem]))
    )
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


def test_what_a_response_said_goes_back_in_as_it_came_out() -> None:
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
