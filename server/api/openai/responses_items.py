"""Converts the input items of POST /v1/responses to chat messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from ebbtide.errors import Rejected

from ...http.strict_json import convert
from ..chat.chat_request import CalledFunction, ChatMessage, MessageCall
from ..chat.foreign_items import as_text
from .call_forms import FUNCTION, ITEMS, CallForm
from .responses_tools import ClientCall, OfferedTools

TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
OUTPUT = "_output"
BRINGS_TOOLS = ("additional_tools", "tool_search_output")
LOST = "An earlier part of this conversation was replaced by a summary that this server cannot read."

Role = Literal["user", "assistant", "system", "developer"]


class ItemPart(msgspec.Struct):
    """A part of an item's content. Only text is supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """One input item. The type of the item determines which fields it has; unknown fields are ignored."""

    type: str = "message"
    role: Role | None = None
    content: str | list[ItemPart] | None = None
    summary: str | list[ItemPart] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    output: str | list[dict[str, Any]] | None = None
    status: str | None = None
    tools: list[dict[str, Any]] | None = None


def chat_messages(
    instructions: str | None, items: str | list[dict[str, Any]], offered: OfferedTools
) -> list[ChatMessage]:
    """Return the conversation as chat messages. Raises Rejected, naming the item, if an item is invalid."""
    conversation = _Conversation(offered)
    if instructions:
        conversation.add_message("system", instructions)
    if isinstance(items, str):
        conversation.add_message("user", items)
        return conversation.messages
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        add = KINDS.get(kind) if isinstance(kind, str) else None
        if add is not None:
            add(conversation, convert(item, InputItem, where), where)
        elif kind not in BRINGS_TOOLS:
            conversation.add_message("user" if str(kind).endswith(OUTPUT) else "assistant", as_text(item))
    messages = conversation.messages
    if not messages:
        raise Rejected("'input' has no message.", param="input")
    return messages


class _Conversation:
    """Collects chat messages. Consecutive items of one response are joined into one assistant message."""

    def __init__(self, offered: OfferedTools) -> None:
        self.offered = offered
        self._heads: list[str] = []  # system messages at the beginning
        self._later: list[ChatMessage] = []
        self._reasoning = ""

    @property
    def messages(self) -> list[ChatMessage]:
        """The conversation so far."""
        heads = [ChatMessage(role="system", content="\n\n".join(self._heads))] if self._heads else []
        return [*heads, *self._later]

    def add_message(self, role: Role, text: str) -> None:
        """Add a message.

        System messages at the beginning are joined into one, because many templates accept only one system message.
        """
        if role in ("system", "developer") and not self._later:
            self._heads.append(text)
        elif role == "assistant":
            self._assistant(text)
        else:
            self._reasoning = ""
            self._later.append(ChatMessage(role=role, content=text))

    def add_reasoning(self, text: str) -> None:
        """Add reasoning. It belongs to the assistant message that follows."""
        self._reasoning += text

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool call to the last assistant message, or to a new one."""
        if self._reasoning or not self._later or self._later[-1].role != "assistant":
            self._assistant("")
        call = MessageCall(CalledFunction(name, arguments), id=call_id)
        if self._later[-1].tool_calls is None:
            self._later[-1].tool_calls = []
        self._later[-1].tool_calls.append(call)

    def add_result(self, call_id: str, text: str) -> None:
        """Add the result of a tool call."""
        self._reasoning = ""
        self._later.append(ChatMessage(role="tool", tool_call_id=call_id, content=text))

    def _assistant(self, text: str) -> None:
        self._later.append(ChatMessage(role="assistant", content=text, reasoning_content=self._reasoning or None))
        self._reasoning = ""


def _message(conversation: _Conversation, item: InputItem, where: str) -> None:
    if item.role is None:
        raise Rejected("A message needs a role.", param=f"{where}.role")
    conversation.add_message(item.role, _text(item.content, f"{where}.content"))


def _reasoning(conversation: _Conversation, item: InputItem, where: str) -> None:
    for name, content in (("content", item.content), ("summary", item.summary)):
        if content:
            return conversation.add_reasoning(_text(content, f"{where}.{name}"))
    return None


def _call(conversation: _Conversation, item: InputItem, where: str, form: CallForm) -> None:
    call_id = _needed(item.call_id or (item.id if form is not FUNCTION else None), f"{where}.call_id")
    name = _needed(item.name, f"{where}.name") if form.is_named else form.tool
    function = conversation.offered.function_of(ClientCall(form, name, item.namespace))
    conversation.add_call(call_id, function, form.arguments_of(getattr(item, form.content) or ""))


def _result(conversation: _Conversation, item: InputItem, where: str, form: CallForm) -> None:
    call_id = _needed(item.call_id or (item.id if form is not FUNCTION else None), f"{where}.call_id")
    if item.output is None and form is FUNCTION:
        raise Rejected(f"'{where}.output' is missing.", param=f"{where}.output")
    conversation.add_result(call_id, _output_text(item))


def _compaction(conversation: _Conversation, item: InputItem, where: str) -> None:
    text = next((_text(part, where) for part in (item.content, item.summary) if part), LOST)
    conversation.add_message("user", text)


def _reference(conversation: _Conversation, item: InputItem, where: str) -> None:
    raise Rejected(
        "Items of type 'item_reference' are not supported: this server stores no items. Send the items themselves,"
        " as clients do with the option store: false.",
        param=f"{where}.type",
    )


KINDS: dict[str, Callable[[_Conversation, InputItem, str], None]] = {
    "message": _message,
    "reasoning": _reasoning,
    "compaction": _compaction,
    "item_reference": _reference,
    **{name: partial(_call, form=form) for name, form in ITEMS.items()},
    **{f"{name}{OUTPUT}": partial(_result, form=form) for name, form in ITEMS.items()},
}


def tools_of(items: str | list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the tools that input items define, by the path of the field that contains them."""
    listed = [] if isinstance(items, str) else items
    found = {f"input[{index}].tools": item.get("tools") for index, item in enumerate(listed) if _brings_tools(item)}
    return {path: [tool for tool in tools if isinstance(tool, dict)] for path, tools in found.items() if tools}


def _brings_tools(item: dict[str, Any]) -> bool:
    return item.get("type") in BRINGS_TOOLS and isinstance(item.get("tools"), list)


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


def _output_text(item: InputItem) -> str:
    """Return the output of a tool call as text.

    Content that is not text is replaced by a note instead of being refused, because the client cannot remove it.
    """
    if isinstance(item.output, str):
        return item.output
    if item.output is None:
        names = [str(tool.get("name")) for tool in item.tools or ()]
        return f"Found the tools {', '.join(names)}." if names else item.status or ""
    return "".join(_part_text(part) for part in item.output)


def _part_text(part: dict[str, Any]) -> str:
    text = part.get("text")
    return text if part.get("type") in TEXT_PARTS and isinstance(text, str) else as_text(part)
