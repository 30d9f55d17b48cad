"""How one model's chat template speaks: what it knows of tools, how it wants earlier calls, which marks it uses.

Found out once, at start, by rendering made-up conversations and looking at the result.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ebbtide.errors import Rejected, StartupError
from ebbtide.tokenization.tokenizer import ChatPrompt, TextTokenizer

from .reasoning import REASONING, ReasoningFormat
from .reasoning import detect as detect_reasoning
from .tools.table import FORMATS, ToolFormat
from .tools.table import detect as detect_tools

log = logging.getLogger(__name__)
AUTO, NONE = "auto", "none"
SHORT_ID = 9  # characters; Mistral's templates take no others

NAME, KEY, VALUE = "probe_function", "probe_key", "probe value"
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
    """How the template wants a message with calls. arguments_as_text: else they are an object.

    content_is_none: a message with nothing but calls has no content, rather than an empty one. short_ids: of nine
    characters. single_calls: a message has one call at most.
    """

    arguments_as_text: bool = False
    content_is_none: bool = False
    short_ids: bool = False
    single_calls: bool = False


@dataclass(frozen=True, slots=True)
class ChatTemplateProfile:
    """calls: None for a template that does not know tools; they are described and written as plain text then."""

    tool_format: ToolFormat = FORMATS["hermes"]
    reasoning: ReasoningFormat | None = None
    calls: CallStyle | None = None
    takes_system: bool = True


def check_parsers(tool_parser: str, reasoning_parser: str) -> None:
    """Raises StartupError for a parser that is not in the tables."""
    _known("--tool-call-parser", tool_parser, (AUTO, *FORMATS))
    _known("--reasoning-parser", reasoning_parser, (AUTO, NONE, *REASONING))


def probe_chat_template(
    tokenizer: TextTokenizer, tool_parser: str = AUTO, reasoning_parser: str = AUTO
) -> ChatTemplateProfile:
    """The profile of a model. Names other than "auto" overrule what the template shows."""
    template = tokenizer.chat_template
    calls = _call_style(tokenizer)
    found = detect_tools(template) if calls is not None else None
    name = (found or "hermes") if tool_parser == AUTO else tool_parser
    reasoning = detect_reasoning(template) if reasoning_parser == AUTO else reasoning_parser
    log.info(
        "tool calls are read as %s writes them, %s; reasoning: %s",
        name,
        "and the chat template describes tools" if calls else "and tools are described in the system message",
        reasoning or NONE,
    )
    return ChatTemplateProfile(
        tool_format=FORMATS[name],
        reasoning=REASONING.get(reasoning or NONE),
        calls=calls,
        takes_system=_renders(tokenizer, [{"role": "system", "content": KEY}, USER]).count(KEY) == 1,
    )


def call_message(style: CallStyle, arguments: dict[str, Any], text: str, call_id: str) -> dict[str, Any]:
    """An assistant's message with one call of ``NAME``, in a style."""
    function = {"name": NAME, "arguments": text if style.arguments_as_text else arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None if style.content_is_none else "", "tool_calls": [call]}


def _call_style(tokenizer: TextTokenizer) -> CallStyle | None:
    """The first style in which the template writes a call as it should; None if there is none, or no tools at all."""
    if NAME not in _renders(tokenizer, [USER], tools=True):
        return None
    for short_ids, content_is_none, as_text in product((False, True), repeat=3):
        style = CallStyle(as_text, content_is_none, short_ids)
        call_id = "a" * SHORT_ID if short_ids else "call_" + "a" * 24
        message = call_message(style, {KEY: VALUE}, f'{{"{KEY}": "{VALUE}"}}', call_id)
        result = {"role": "tool", "tool_call_id": call_id, "name": NAME, "content": "Found."}
        without = _renders(tokenizer, [USER], tools=True)
        rendered = _renders(tokenizer, [USER, message, result], tools=True)
        if rendered.count(NAME) > without.count(NAME) and _well_written(rendered, without):
            two = {**message, "tool_calls": message["tool_calls"] * 2}
            return replace(style, single_calls=not _renders(tokenizer, [USER, two, result, result], tools=True))
    return None


def _well_written(rendered: str, without: str) -> bool:
    """Whether the arguments are there, neither as Python writes them nor as a string within JSON."""
    wrong = (f"'{KEY}'", f'\\"{KEY}\\"')
    more = rendered.count(KEY) > without.count(KEY) and VALUE in rendered
    return more and not any(rendered.count(form) > without.count(form) for form in wrong)


def _renders(tokenizer: TextTokenizer, messages: list[dict[str, Any]], *, tools: bool = False) -> str:
    """What the template makes of messages; "" if it refuses them."""
    try:
        return tokenizer.render_chat(ChatPrompt(messages, tools=[TOOL] if tools else None))
    except Rejected:
        return ""


def _known(flag: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise StartupError(f"{flag} {name} is not known; it is one of {', '.join(names)}.")
