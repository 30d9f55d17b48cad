"""The items of a response's input as the messages of a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ebbtide.errors import Rejected

TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


class ItemPart(msgspec.Struct):
    """A part of an item's content; only text can be read here."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """One item. Which fields it has depends on its type; further ones are ignored."""

    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ItemPart] | None = None


def chat_messages(instructions: str | None, items: str | list[InputItem]) -> list[dict[str, Any]]:
    """The conversation as a chat's messages. Raises Rejected, whose ``param`` names the item."""
    conversation = _Conversation()
    if instructions:
        conversation.say("system", instructions)
    if isinstance(items, str):
        conversation.say("user", items)
        return conversation.messages
    for index, item in enumerate(items):
        add = KINDS.get(item.type)
        if add is None:
            known = ", ".join(KINDS)
            raise Rejected(
                f"Items of type {item.type[:50]!r} are not supported: {known} are.", param=f"input[{index}].type"
            )
        add(conversation, item, f"input[{index}]")
    return conversation.messages


class _Conversation:
    """Messages so far. What one response says in several items is one message of the assistant."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning = ""

    def say(self, role: str, text: str) -> None:
        """A message of its own; instructions at the beginning are one message, for many templates take no second."""
        heads = ("system", "developer")
        if role in heads and len(self.messages) == 1 and self.messages[0]["role"] in heads:
            self.messages[0]["content"] += f"\n\n{text}"
        elif role == "assistant":
            self._assistant(text)
        else:
            self._reasoning = ""
            self.messages.append({"role": role, "content": text})

    def think(self, text: str) -> None:
        """What the assistant thought before it said the next thing."""
        self._reasoning += text

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """A call in the assistant's message."""
        if self._reasoning or not self.messages or self.messages[-1]["role"] != "assistant":
            self._assistant("")
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self.messages[-1].setdefault("tool_calls", []).append(call)

    def answer(self, call_id: str, text: str) -> None:
        """What a call came to."""
        self._reasoning = ""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _assistant(self, text: str) -> None:
        message = {"role": "assistant", "content": text}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        self._reasoning = ""
        self.messages.append(message)


def _message(conversation: _Conversation, item: InputItem, where: str) -> None:
    if item.role is None:
        raise Rejected("A message needs a role.", param=f"{where}.role")
    conversation.say(item.role, _text(item.content, f"{where}.content"))


def _reasoning(conversation: _Conversation, item: InputItem, where: str) -> None:
    if item.content:
        conversation.think(_text(item.content, f"{where}.content"))


def _function_call(conversation: _Conversation, item: InputItem, where: str) -> None:
    call_id, name = _needed(item.call_id, f"{where}.call_id"), _needed(item.name, f"{where}.name")
    conversation.call(call_id, name, item.arguments or "")


def _function_call_output(conversation: _Conversation, item: InputItem, where: str) -> None:
    conversation.answer(_needed(item.call_id, f"{where}.call_id"), _text(item.output, f"{where}.output"))


KINDS: dict[str, Callable[[_Conversation, InputItem, str], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}


def _needed(value: str | None, where: str) -> str:
    if value is None:
        raise Rejected(f"'{where}' is missing.", param=where)
    return value


def _text(content: str | list[ItemPart] | None, where: str) -> str:
    if not isinstance(content, list):
        return _needed(content, where)
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in TEXT_PARTS or text is None:
            raise Rejected(
                f"Content parts of type {part.type[:50]!r} are not supported: this model reads text.",
                param=f"{where}[{index}]",
            )
        texts.append(text)
    return "".join(texts)
