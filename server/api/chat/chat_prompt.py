"""Converts the messages of a chat request to the conversation that the model's chat template renders."""

from __future__ import annotations

import json
from itertools import islice, takewhile
from typing import Any

from ebbtide.errors import Rejected
from ebbtide.tokenization.tokenizer import RESERVED_VARIABLES, ChatPrompt

from ...http.strict_json import parse_arguments
from ...parsers.chat_template_profile import SHORT_ID, CallStyle, ChatTemplateProfile
from ...parsers.role_rules import join_repeats, keep_system, place_systems
from ...parsers.tool_fields import ToolOptions
from ...parsers.tool_prompt import calls_as_text, with_tools
from .chat_request import ChatBody, ChatMessage

Message = dict[str, Any]


def chat_prompt(
    body: ChatBody, options: ToolOptions | None, profile: ChatTemplateProfile, *, is_continuation: bool = False
) -> ChatPrompt:
    """Return the conversation of a chat request.

    Raises Rejected if a message is invalid, or if two fields contradict each other.

    is_continuation: True if earlier messages precede these, so that the prompt already describes the tools.
    """
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise Rejected(
            "'continue_final_message' and 'add_generation_prompt' are mutually exclusive.",
            param="continue_final_message",
        )
    if continues and body.messages[-1].role != "assistant":
        raise Rejected("'continue_final_message' needs an assistant message at the end.", param="messages")
    messages = [_plain(message, index) for index, message in enumerate(body.messages)]
    messages = place_systems(messages, profile.roles, is_continuation=is_continuation)
    style = profile.calls
    if style is not None:
        messages = keep_system(join_repeats(messages, profile.roles), profile.roles)
        messages = _in_style(messages, style)
    else:
        messages = join_repeats(calls_as_text(messages), profile.roles)
        if options is not None and not is_continuation:
            messages = with_tools(messages, options, takes_system=profile.roles.takes_system)
        messages = keep_system(messages, profile.roles)
    return ChatPrompt(
        messages=messages,
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        template_kwargs=_options(body),
        tools=options.tools if options is not None and style is not None else None,
    )


def num_messages(body: ChatBody) -> int:
    """Return the number of messages plus the number of tool calls in them."""
    return sum([1 + len(message.tool_calls or ()) for message in body.messages])


def _options(body: ChatBody) -> dict[str, Any]:
    """Return the additional variables for the template.

    The reasoning effort "none" also sets the variables that turn reasoning off.
    """
    options = dict(body.chat_template_kwargs or {})
    for name in RESERVED_VARIABLES & options.keys():
        raise Rejected(
            f"'chat_template_kwargs' must not set {name!r}: this name is reserved.", param="chat_template_kwargs"
        )
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
    if body.reasoning_effort == "none":
        options = {"enable_thinking": False, "thinking": False, **options}
    return options


def _plain(message: ChatMessage, index: int) -> Message:
    """Return the message as templates expect it: the content as a string, and "developer" replaced by "system"."""
    plain: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message, index),
    }
    for key in ("name", "tool_call_id"):
        value = getattr(message, key)
        if value is not None:
            plain[key] = value
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None:
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            _call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
        ]
    return plain


def _call(call_id: str | None, name: str, arguments: str | dict[str, Any] | None) -> Message:
    """Return an earlier tool call in the format that templates expect.

    If the arguments are not a JSON object, they stay a string.
    """
    parsed = _parsed(arguments) if isinstance(arguments, str) else arguments
    function = {"name": name, "arguments": {} if parsed is None else parsed}
    return {"id": call_id or "", "type": "function", "function": function}


def _parsed(arguments: str) -> str | dict[str, Any]:
    if not arguments.strip():
        return {}
    parsed = parse_arguments(arguments)
    return arguments if parsed is None else parsed


def _in_style(messages: list[Message], style: CallStyle) -> list[Message]:
    """Convert tool calls to the format that the template expects, and add the function name to each tool result."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    ordered = _one_by_one(messages) if style.single_calls else messages
    return [_styled(message, style, names) for message in ordered]


def _one_by_one(messages: list[Message]) -> list[Message]:
    """Return the conversation with one tool call per message, each followed by its result."""
    ordered: list[Message] = []
    after_results = 0  # index of the first message after the tool results that have been handled
    for index, message in enumerate(messages):
        calls = message.get("tool_calls", [])
        if index < after_results:
            continue
        if len(calls) < 2:
            ordered.append(message)
            continue
        results = list(takewhile(lambda later: later["role"] == "tool", islice(messages, index + 1, None)))
        after_results = index + 1 + len(results)
        by_call: dict[str, list[Message]] = {call["id"]: [] for call in calls}
        unknown: list[Message] = []
        for result in results:
            by_call.get(result.get("tool_call_id", ""), unknown).append(result)
        for number, call in enumerate(calls):
            ordered.append({**message, "content": "" if number else message["content"], "tool_calls": [call]})
            ordered += by_call.pop(call["id"], [])
        ordered += unknown
    return ordered


def _styled(message: Message, style: CallStyle, names: dict[str, str]) -> Message:
    styled = dict(message)
    if "tool_call_id" in message:
        if message["tool_call_id"] in names:
            styled.setdefault("name", names[message["tool_call_id"]])
        styled["tool_call_id"] = _id(message["tool_call_id"], style)
    if "tool_calls" in message:
        styled["tool_calls"] = [_styled_call(call, style) for call in message["tool_calls"]]
        if style.content_is_none and not message["content"]:
            styled["content"] = None
    return styled


def _styled_call(call: Message, style: CallStyle) -> Message:
    function = call["function"]
    arguments = function["arguments"]
    if style.objects_only and isinstance(arguments, str):
        arguments = {}
    if style.arguments_as_text and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "id": _id(call["id"], style), "function": {**function, "arguments": arguments}}


def _id(call_id: str, style: CallStyle) -> str:
    if not style.short_ids:
        return call_id
    letters = "".join(c for c in call_id if c.isascii() and c.isalnum())
    return letters[-SHORT_ID:].rjust(SHORT_ID, "0")


def _text(message: ChatMessage, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for number, part in enumerate(message.content):
        if part.type == "text" and part.text is None:
            where = f"messages[{index}].content[{number}].text"
            raise Rejected(f"'{where}' is missing.", param=where)
        if part.type != "text" or part.text is None:
            raise Rejected(
                f"Content parts of type {part.type[:50]!r} are not supported: this model accepts only text.",
                param=f"messages[{index}].content[{number}]",
            )
        texts.append(part.text)
    return "".join(texts)
