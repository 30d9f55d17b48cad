"""Converts Anthropic's messages, which consist of content blocks, to chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from ebbtide.errors import Rejected

from ...http.strict_json import convert
from ..chat.chat_request import CalledFunction, ChatMessage, MessageCall
from ..chat.foreign_items import as_text

SEPARATOR = "\n\n"  # separates the text blocks of a user message, a system message or a tool result
# Blocks of other types, such as results of searches on Anthropic's servers, are converted to text.
TYPES = ("text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking")

Content = str | list[dict[str, Any]]


class Block(msgspec.Struct, kw_only=True):
    """One content block.

    The type of the block determines which fields it has; other fields, such as cache_control, are ignored.
    """

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None  # the arguments: a JSON object, or a string if the call was truncated
    tool_use_id: str | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    thinking: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Content


def chat_messages(system: Content | None, messages: list[Message]) -> list[ChatMessage]:
    """Return the conversation as chat messages. Raises Rejected, naming the block, if a block is invalid."""
    chat: list[ChatMessage] = []
    if system:
        chat.append(ChatMessage(role="system", content=_joined(system, "system")))
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        if message.role == "assistant":
            chat.append(_assistant(message.content, where))
        elif message.role == "system":
            chat.append(ChatMessage(role="system", content=_joined(message.content, where)))
        else:
            chat += _user(message.content, where)
    return chat


def _assistant(content: Content, where: str) -> ChatMessage:
    """Return the blocks of an assistant message as one chat message with text, reasoning and tool calls."""
    if isinstance(content, str):
        return ChatMessage(role="assistant", content=content)
    text, reasoning, calls = "", "", []
    for block, raw, place in _blocks(content, where):
        if block.type == "thinking":
            reasoning += block.thinking or ""
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":  # encrypted reasoning of another server, which is ignored
            text += _text(block, raw, place)
    return ChatMessage(role="assistant", content=text, reasoning_content=reasoning or None, tool_calls=calls or None)


def _user(content: Content, where: str) -> list[ChatMessage]:
    """Return one chat message per tool result and per run of text blocks, in the order of the blocks."""
    if isinstance(content, str):
        return [ChatMessage(role="user", content=content)]
    messages: list[ChatMessage] = []
    texts: list[str] = []  # the current run of text blocks
    for block, raw, place in _blocks(content, where):
        if block.type == "tool_result":
            messages += [*_text_message(texts), _result(block, place)]
            texts = []
        else:
            texts.append(_text(block, raw, place))
    messages += _text_message(texts)
    return messages or [ChatMessage(role="user", content="")]


def _text_message(texts: list[str]) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=SEPARATOR.join(texts))] if texts else []


def _blocks(content: list[dict[str, Any]], where: str) -> Iterator[tuple[Block, dict[str, Any], str]]:
    """Yield each block, its JSON as the client sent it, and its path.

    If the type of a block is not in ``TYPES``, only its type is parsed.
    """
    for index, raw in enumerate(content):
        place = f"{where}[{index}]"
        fields = raw if raw.get("type") in TYPES else {"type": raw["type"]} if "type" in raw else {}
        yield convert(fields, Block, place), raw, place


def _call(block: Block, where: str) -> MessageCall:
    if block.id is None or block.name is None:
        raise Rejected(f"'{where}' needs an 'id' and a 'name'.")
    arguments = block.input if isinstance(block.input, str) else json.dumps(block.input or {}, ensure_ascii=False)
    return MessageCall(CalledFunction(block.name, arguments), id=block.id)


def _result(block: Block, where: str) -> ChatMessage:
    """Return a tool result as a chat message.

    An image is replaced by a note instead of being refused, because the client cannot remove it from the conversation.
    """
    if block.tool_use_id is None:
        raise Rejected(f"'{where}' needs a 'tool_use_id'.")
    content = block.content or ""
    if not isinstance(content, str):
        parts = _blocks(content, f"{where}.content")
        texts = [_text(*part) if part[0].type == "text" else as_text(part[1]) for part in parts]
        content = SEPARATOR.join(texts)
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=content)


def _joined(content: Content, where: str) -> str:
    if isinstance(content, str):
        return content
    return SEPARATOR.join(_text(*part) for part in _blocks(content, where))


def _text(block: Block, raw: dict[str, Any], where: str) -> str:
    if block.type not in TYPES:
        return as_text(raw)
    if block.type != "text":
        raise Rejected(
            f"'{where}' has the type {block.type[:50]!r}, which is not supported here: this model accepts only text."
        )
    if block.text is None:
        raise Rejected(f"'{where}' needs a 'text'.")
    return block.text
