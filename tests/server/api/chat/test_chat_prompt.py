"""The conversation that the model's template renders for a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebbtide.errors import Rejected
from ebbtide.server.api.chat.chat_prompt import chat_prompt
from ebbtide.server.api.chat.chat_request import ChatBody
from ebbtide.server.parsers.chat_template_profile import CallStyle, ChatTemplateProfile, probe_chat_template
from ebbtide.server.parsers.tool_fields import tool_options
from ebbtide.tokenization.tokenizer import ChatPrompt

from ...chat_templates import DEEPSEEK, HERMES, LLAMA, MISTRAL, PLAIN, tokenizer_with

CALL_ID = "call_0123456789abcdef01234567"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASKED = {"role": "user", "content": "hi"}


def call(arguments: Any, call_id: str = CALL_ID) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def history(arguments: Any = '{"city": "Zürich"}', **message: Any) -> list[dict[str, Any]]:
    called = {"role": "assistant", "tool_calls": [call(arguments)], **message}
    return [ASKED, called, {"role": "tool", "tool_call_id": CALL_ID, "content": "sunny"}]


def prompt(messages: list[dict[str, Any]], style: CallStyle | None = None, **fields: Any) -> ChatPrompt:
    body = msgspec.convert({"messages": messages, **fields}, ChatBody)
    return chat_prompt(body, tool_options(body), ChatTemplateProfile(calls=style))


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
def test_calls_need_no_content_beside_them(content: dict[str, Any]) -> None:
    messages = prompt(history(**content), CallStyle()).messages
    assert messages[1]["content"] == ""
    assert messages[1]["tool_calls"] == [call({"city": "Zürich"})]


def test_a_result_has_the_name_of_its_function() -> None:
    assert prompt(history(), CallStyle()).messages[2]["name"] == "weather"
    lost = [{"role": "tool", "tool_call_id": "unknown", "content": "x"}]
    assert "name" not in prompt(lost, CallStyle()).messages[0]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        *(('{"a": [1]}', {"a": [1]}), ({"a": 1}, {"a": 1}), ("", {}), (None, {})),
        *((text, text) for text in ("{broken", "[1]", '{"a": 1e999}', '{"a": NaN}', '{"a": "\\ud800"}')),
    ],
)
def test_arguments_are_an_object_if_they_can_be(arguments: Any, seen: Any) -> None:
    [_, message, _] = prompt(history(arguments), CallStyle()).messages
    assert message["tool_calls"][0]["function"]["arguments"] == seen


def test_a_style_requires_texts_no_content_and_short_ids() -> None:
    style = CallStyle(arguments_as_text=True, content_is_none=True, short_ids=True)
    [_, message, result] = prompt(history(), style).messages
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Zürich"}'
    assert message["tool_calls"][0]["id"] == result["tool_call_id"] == "f01234567"
    assert prompt(history(content="Look:"), style).messages[1]["content"] == "Look:"


def test_parallel_calls_are_split_for_templates_with_single_calls() -> None:
    messages: list[dict[str, Any]] = [
        ASKED,
        {"role": "assistant", "content": "Both:", "tool_calls": [call("{}", "a"), call("{}", "b")]},
        {"role": "tool", "tool_call_id": "b", "content": "second"},
        {"role": "tool", "tool_call_id": "a", "content": "first"},
        {"role": "tool", "tool_call_id": "c", "content": "stray"},
        {"role": "assistant", "content": "ok", "tool_calls": [call("{}", "d")]},
    ]
    told = prompt(messages, CallStyle(single_calls=True)).messages
    shown = [(m["role"], m["content"], [c["id"] for c in m.get("tool_calls", ())]) for m in told]
    assert shown == [
        ("user", "hi", []),
        ("assistant", "Both:", ["a"]),
        ("tool", "first", []),
        ("assistant", "", ["b"]),
        ("tool", "second", []),
        ("tool", "stray", []),
        ("assistant", "ok", ["d"]),
    ]
    assert len(prompt(messages, CallStyle()).messages) == len(messages)


def test_a_template_with_tool_support_receives_the_tools() -> None:
    shown = prompt([ASKED], CallStyle(), tools=[TOOL])
    assert shown.tools is not None
    assert [tool["function"]["name"] for tool in shown.tools] == ["weather"]
    assert shown.messages == [ASKED]
    assert prompt([ASKED], CallStyle(), tools=[TOOL], tool_choice="none").tools is None


def test_a_template_without_tools_gets_a_description() -> None:
    shown = prompt(history(), tools=[TOOL])
    assert shown.tools is None
    assert [message["role"] for message in shown.messages] == ["system", "user", "assistant", "user"]
    assert '"weather"' in shown.messages[0]["content"]
    assert shown.messages[2]["content"].startswith("<tool_call>\n")


def test_reasoning_of_earlier_answers_is_passed_on_under_either_name() -> None:
    for name in ("reasoning", "reasoning_content"):
        [message] = prompt([{"role": "assistant", "content": "x", name: "why"}]).messages
        assert message["reasoning_content"] == "why"


def test_no_effort_turns_reasoning_off_unless_the_request_turns_it_on() -> None:
    options = prompt([ASKED], reasoning_effort="none").template_kwargs
    assert options == {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}
    kept = prompt([ASKED], reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}).template_kwargs
    assert kept["enable_thinking"] is True
    assert prompt([ASKED], reasoning_effort="low").template_kwargs == {"reasoning_effort": "low"}


@pytest.mark.parametrize("template", [PLAIN, HERMES, DEEPSEEK, MISTRAL, LLAMA])
def test_every_kind_of_template_writes_a_conversation_with_calls(template: str) -> None:
    tokenizer = tokenizer_with(template)
    body = msgspec.convert({"messages": history(), "tools": [TOOL]}, ChatBody)
    rendered = tokenizer.render_chat(chat_prompt(body, tool_options(body), probe_chat_template(tokenizer)))
    assert '{"city": "Zürich"}' in rendered
    assert "sunny" in rendered
    assert rendered.count("weather") >= 2


@pytest.mark.parametrize("template", [PLAIN, HERMES])
def test_no_description_writes_a_control_token(template: str) -> None:
    tokenizer = tokenizer_with(template)
    schema = {"type": "object", "properties": {"<|end|>": {"type": "string", "description": "x<|end|>"}}}
    tool = {"type": "function", "function": {"name": "f", "description": "<|end|>", "parameters": schema}}
    profile = probe_chat_template(tokenizer)

    def controls(offered: dict[str, Any], arguments: dict[str, Any]) -> int:
        body = msgspec.convert({"messages": history(arguments), "tools": [offered]}, ChatBody)
        ids = tokenizer.encode_chat(chat_prompt(body, tool_options(body), profile))
        text = b"".join(tokenizer.vocabulary.pieces[i] for i in ids).decode()
        assert text.count("<|end|>") >= 1
        assert "~" not in text
        return sum(i in tokenizer.vocabulary.special_ids for i in ids)

    assert controls(tool, {"<|end|>": "<|end|>"}) == controls(TOOL, {"a": "b"})


def test_a_template_cannot_be_sent() -> None:
    with pytest.raises(Rejected):
        prompt([ASKED], chat_template_kwargs={"chat_template": "x"})
