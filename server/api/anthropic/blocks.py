"""Anthropic's messages, which consist of blocks, as chat messages."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from ebbtide.errors import Rejected

from ..chat.chat_request import CalledFunction, ChatMessage, MessageCall

SEPARATOR = "\n\n"  # between blocks of the user, of the system or of a tool's result


class Block(msgspec.Struct, kw_only=True):
    """One block. Its type decides which of the fields it has; others, such as cache_control, have no effect."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    thinking: str | None = None


class Message(msgspec.Struct, kw_only=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


def chat_messages(system: str | list[Block] | None, messages: list[Message]) -> list[ChatMessage]:
    """Return the conversation as chat messages. Raises Rejected with a message that names the block."""
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


def _assistant(content: str | list[Block], where: str) -> ChatMessage:
    """Return text, reasoning and calls as one message."""
    if isinstance(content, str):
        return ChatMessage(role="assistant", content=content)
    text, reasoning, calls = "", "", []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if block.type == "thinking":
            reasoning += block.thinking or ""
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":  # encrypted by another server
            text += _text(block, place)
    return ChatMessage(role="assistant", content=text, reasoning_content=reasoning or None, tool_calls=calls or None)


def _user(content: str | list[Block], where: str) -> list[ChatMessage]:
    """Return the user's text, and each tool result as a message of its own, in the order of the blocks."""
    if isinstance(content, str):
        return [ChatMessage(role="user", content=content)]
    messages: list[ChatMessage] = []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if block.type == "tool_result":
            messages.append(_result(block, place))
        elif messages and messages[-1].role == "user":
            messages[-1].content = f"{messages[-1].content}{SEPARATOR}{_text(block, place)}"
        else:
            messages.append(ChatMessage(role="user", content=_text(block, place)))
    return messages or [ChatMessage(role="user", content="")]


def _call(block: Block, where: str) -> MessageCall:
    if block.id is None or block.name is None:
        raise Rejected(f"'{where}' needs an 'id' and a 'name'.")
    return MessageCall(CalledFunction(block.name, json.dumps(block.input or {}, ensure_ascii=False)), id=block.id)


def _result(block: Block, where: str) -> ChatMessage:
    if block.tool_use_id is None:
        raise Rejected(f"'{where}' needs a 'tool_use_id'.")
    text = _joined(block.content, f"{where}.content") if block.content else ""
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=text)


def _joined(content: str | list[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return SEPARATOR.join(_text(block, f"{where}[{index}]") for index, block in enumerate(content))


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise Rejected(
            f"'{where}' is a block of type {block.type[:50]!r}, not supported here: this model accepts only text."
        )
    if block.text is None:
        raise Rejected(f"'{where}' needs a 'text'.")
    return block.text
