"""Messages made of blocks, as Anthropic has them, as the messages of a chat."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from ebbtide.errors import Rejected

BETWEEN = "\n\n"  # blocks of a user, of the system or of a tool's result are texts of their own


class Block(msgspec.Struct, kw_only=True):
    """One block. Which fields it has depends on its type; further ones, such as cache_control, have no effect."""

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


def chat_messages(system: str | list[Block] | None, messages: list[Message]) -> list[dict[str, Any]]:
    """The conversation as a chat's messages. Raises Rejected, whose message names the block."""
    chat: list[dict[str, Any]] = []
    if system:
        chat.append({"role": "system", "content": _joined(system, "system")})
    for index, message in enumerate(messages):
        where = f"messages[{index}].content"
        if message.role == "assistant":
            chat.append(_assistant(message.content, where))
        elif message.role == "system":
            chat.append({"role": "system", "content": _joined(message.content, where)})
        else:
            chat += _user(message.content, where)
    return chat


def _assistant(content: str | list[Block], where: str) -> dict[str, Any]:
    """Text, reasoning and calls of one message."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    text, reasoning, calls = "", "", []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if block.type == "thinking":
            reasoning += block.thinking or ""
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":  # nobody here can read it
            text += _text(block, place)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _user(content: str | list[Block], where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, in front of and behind the user's words as they came."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if block.type == "tool_result":
            messages.append(_result(block, place))
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += BETWEEN + _text(block, place)
        else:
            messages.append({"role": "user", "content": _text(block, place)})
    return messages or [{"role": "user", "content": ""}]


def _call(block: Block, where: str) -> dict[str, Any]:
    if block.id is None or block.name is None:
        raise Rejected(f"'{where}' needs an 'id' and a 'name'.")
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _result(block: Block, where: str) -> dict[str, Any]:
    if block.tool_use_id is None:
        raise Rejected(f"'{where}' needs a 'tool_use_id'.")
    text = _joined(block.content, f"{where}.content") if block.content else ""
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _joined(content: str | list[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return BETWEEN.join(_text(block, f"{where}[{index}]") for index, block in enumerate(content))


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise Rejected(
            f"'{where}' is a block of type {block.type[:50]!r}, which cannot be here: this model reads text."
        )
    if block.text is None:
        raise Rejected(f"'{where}' needs a 'text'.")
    return block.text
