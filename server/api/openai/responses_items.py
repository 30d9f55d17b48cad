"""The input items of POST /v1/responses as chat messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from ebbtide.errors import Rejected

from ..chat.chat_request import CalledFunction, ChatMessage, MessageCall

TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


Role = Literal["user", "assistant", "system", "developer"]


class ItemPart(msgspec.Struct):
    """A part of an item's content. Only text is supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """One item. Its type decides which of the fields it has; unknown fields are ignored."""

    type: str = "message"
    role: Role | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ItemPart] | None = None


def chat_messages(instructions: str | None, items: str | list[InputItem]) -> list[ChatMessage]:
    """Return the conversation as chat messages. Raises Rejected, whose ``param`` names the item."""
    conversation = _Conversation()
    if instructions:
        conversation.add_message("system", instructions)
    if isinstance(items, str):
        conversation.add_message("user", items)
        return conversation.messages
    for index, item in enumerate(items):
        add = KINDS.get(item.type)
        if add is None:
            known = ", ".join(KINDS)
            raise Rejected(
                f"Items of type {item.type[:50]!r} are not supported, only {known}.", param=f"input[{index}].type"
            )
        add(conversation, item, f"input[{index}]")
    if not conversation.messages:
        raise Rejected("'input' has no message.", param="input")
    return conversation.messages


class _Conversation:
    """The messages so far. Consecutive items of one response are joined to one assistant message."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._reasoning = ""

    def add_message(self, role: Role, text: str) -> None:
        """Add a message. Instructions at the beginning become one message: many templates accept only one."""
        heads = ("system", "developer")
        if role in heads and len(self.messages) == 1 and self.messages[0].role in heads:
            self.messages[0].content = f"{self.messages[0].content}\n\n{text}"
        elif role == "assistant":
            self._assistant(text)
        else:
            self._reasoning = ""
            self.messages.append(ChatMessage(role=role, content=text))

    def add_reasoning(self, text: str) -> None:
        """Add reasoning, which belongs to the assistant message that follows."""
        self._reasoning += text

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a call to the assistant message."""
        if self._reasoning or not self.messages or self.messages[-1].role != "assistant":
            self._assistant("")
        call = MessageCall(CalledFunction(name, arguments), id=call_id)
        self.messages[-1].tool_calls = [*(self.messages[-1].tool_calls or ()), call]

    def add_result(self, call_id: str, text: str) -> None:
        """Add the result of a call."""
        self._reasoning = ""
        self.messages.append(ChatMessage(role="tool", tool_call_id=call_id, content=text))

    def _assistant(self, text: str) -> None:
        self.messages.append(ChatMessage(role="assistant", content=text, reasoning_content=self._reasoning or None))
        self._reasoning = ""


def _message(conversation: _Conversation, item: InputItem, where: str) -> None:
    if item.role is None:
        raise Rejected("A message needs a role.", param=f"{where}.role")
    conversation.add_message(item.role, _text(item.content, f"{where}.content"))


def _reasoning(conversation: _Conversation, item: InputItem, where: str) -> None:
    if item.content:
        conversation.add_reasoning(_text(item.content, f"{where}.content"))


def _function_call(conversation: _Conversation, item: InputItem, where: str) -> None:
    call_id, name = _needed(item.call_id, f"{where}.call_id"), _needed(item.name, f"{where}.name")
    conversation.add_call(call_id, name, item.arguments or "")


def _function_call_output(conversation: _Conversation, item: InputItem, where: str) -> None:
    conversation.add_result(_needed(item.call_id, f"{where}.call_id"), _text(item.output, f"{where}.output"))


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
                f"Content parts of type {part.type[:50]!r} are not supported: this model accepts only text.",
                param=f"{where}[{index}]",
            )
        texts.append(text)
    return "".join(texts)
