"""Probes a model's chat template: whether it supports tools, how it expects earlier tool calls, which markers it uses.

The template is probed once, at start, by rendering sample conversations.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ebbtide.errors import Rejected, StartupError
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer

from .reasoning import REASONING, ReasoningFormat
from .reasoning import detect as detect_reasoning
from .role_rules import RoleRules, probe_roles
from .tools.table import FORMATS, ToolFormat
from .tools.table import detect as detect_tools

log = logging.getLogger(__name__)
AUTO, NONE = "auto", "none"
SHORT_ID = 9  # length of a call id in characters; Mistral's templates accept only this length

NAME, KEY, VALUE = "probe_function", "probe_key", "probe value"
CUT_VALUE = VALUE[:-1]
CUT_ARGUMENTS = f'{{"{KEY}": "{CUT_VALUE}'  # truncated arguments, which are not a JSON object
EXTRA_TEXT = "And now?"
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string", "description": "What."}}},
    },
}
USER = {"role": "user", "content": "Look at it."}


@dataclass(frozen=True, slots=True)
class CallStyle:
    """The format in which a template expects assistant messages with tool calls.

    Attributes:
        arguments_as_text: True if arguments must be a string that contains JSON, False if they must be an object.
        content_is_none: True if the content of a message that has only tool calls must be None, False if it must be "".
        short_ids: True if call ids must have nine characters.
        single_calls: True if a message may have only one tool call.
        objects_only: True if the template does not render arguments that are not a JSON object.
    """

    arguments_as_text: bool = False
    content_is_none: bool = False
    short_ids: bool = False
    single_calls: bool = False
    objects_only: bool = False


@dataclass(frozen=True, slots=True)
class ChatTemplateProfile:
    """The features that a model's chat template supports.

    Attributes:
        tool_format: the format in which the model writes tool calls.
        reasoning: the format in which the model writes reasoning; None if it does not reason.
        calls: the format of tool calls in messages; None if the template does not support tools, so that a system
            message must describe them.
        roles: the sequences of roles that the template accepts.
    """

    tool_format: ToolFormat = FORMATS["hermes"]
    reasoning: ReasoningFormat | None = None
    calls: CallStyle | None = None
    roles: RoleRules = field(default_factory=RoleRules)


def check_parsers(tool_parser: str, reasoning_parser: str) -> None:
    """Raise StartupError if a parser name is unknown."""
    _known("--tool-call-parser", tool_parser, (AUTO, *FORMATS))
    _known("--reasoning-parser", reasoning_parser, (AUTO, NONE, *REASONING))


def probe_chat_template(
    tokenizer: TextTokenizer, tool_parser: str = AUTO, reasoning_parser: str = AUTO
) -> ChatTemplateProfile:
    """Return the profile of a model. A parser name other than "auto" overrides the format found in the template."""
    template = tokenizer.chat_template
    calls = _call_style(tokenizer)
    roles = probe_roles(lambda messages: _renders(tokenizer, messages))
    if calls is not None:
        roles = replace(roles, **_rules_of_calls(tokenizer, calls))
    found = detect_tools(template) if calls is not None else None
    name = (found or "hermes") if tool_parser == AUTO else tool_parser
    reasoning = detect_reasoning(template) if reasoning_parser == AUTO else reasoning_parser
    log.info(
        "tool-call format: %s; tools are described by the %s; reasoning format: %s",
        name,
        "chat template" if calls else "system message",
        reasoning or NONE,
    )
    return ChatTemplateProfile(
        tool_format=FORMATS[name],
        reasoning=REASONING.get(reasoning or NONE),
        calls=calls,
        roles=roles,
    )


def call_message(style: CallStyle, arguments: dict[str, Any], text: str, call_id: str) -> dict[str, Any]:
    """Return an assistant message, in the given style, with one tool call of the function ``NAME``.

    arguments: the arguments as an object.
    text: the same arguments as a string.
    """
    function = {"name": NAME, "arguments": text if style.arguments_as_text else arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None if style.content_is_none else "", "tool_calls": [call]}


def _call_style(tokenizer: TextTokenizer) -> CallStyle | None:
    """Return the first style that the template renders correctly; None if there is none."""
    if NAME not in _renders(tokenizer, [USER], tools=True):
        return None
    without = _renders(tokenizer, [USER], tools=True)
    for short_ids, content_is_none, as_text in product((False, True), repeat=3):
        style = CallStyle(as_text, content_is_none, short_ids)
        message, result = _exchange(style)
        rendered = _renders(tokenizer, [USER, message, result], tools=True)
        if rendered.count(NAME) > without.count(NAME) and _well_written(rendered, without):
            two = {**message, "tool_calls": message["tool_calls"] * 2}
            cut = _renders(tokenizer, [USER, *_exchange(style, CUT_ARGUMENTS)], tools=True)
            return replace(
                style,
                single_calls=not _renders(tokenizer, [USER, two, result, result], tools=True),
                objects_only=CUT_VALUE not in cut,
            )
    return None


def _exchange(style: CallStyle, arguments: str | None = None) -> list[dict[str, Any]]:
    """Return a message with a tool call, and the message with its result.

    arguments: a string to use instead of valid arguments.
    """
    call_id = "a" * SHORT_ID if style.short_ids else "call_" + "a" * 24
    message = call_message(style, {KEY: VALUE}, f'{{"{KEY}": "{VALUE}"}}', call_id)
    if arguments is not None:
        message["tool_calls"][0]["function"]["arguments"] = arguments
    return [message, {"role": "tool", "tool_call_id": call_id, "name": NAME, "content": "Found."}]


def _rules_of_calls(tokenizer: TextTokenizer, style: CallStyle) -> dict[str, bool]:
    """Return the fields of ``RoleRules`` that concern tool calls."""
    call, result = _exchange(style)
    text = {"role": "assistant", "content": EXTRA_TEXT}
    question = {"role": "user", "content": EXTRA_TEXT}
    answer = {"role": "assistant", "content": "Yes."}
    return {
        "takes_call_after_text": EXTRA_TEXT in _renders(tokenizer, [USER, text, call, result, answer], tools=True),
        "takes_user_after_result": EXTRA_TEXT in _renders(tokenizer, [USER, call, result, question], tools=True),
    }


def _well_written(rendered: str, without: str) -> bool:
    """Return True if the arguments are rendered as JSON, not as a Python literal or as a string within JSON."""
    wrong = (f"'{KEY}'", f'\\"{KEY}\\"')
    more = rendered.count(KEY) > without.count(KEY) and VALUE in rendered
    return more and not any(rendered.count(form) > without.count(form) for form in wrong)


def _renders(tokenizer: TextTokenizer, messages: list[dict[str, Any]], *, tools: bool = False) -> str:
    """Return the rendered messages; "" if the template rejects them."""
    try:
        return tokenizer.render_chat(ChatPrompt(messages, tools=[TOOL] if tools else None))
    except Rejected:
        return ""


def _known(flag: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise StartupError(f"{flag} {name} is unknown; it must be one of {', '.join(names)}.")
