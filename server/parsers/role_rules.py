"""Detects the sequences of roles that a chat template accepts, and rearranges conversations accordingly.

The template is probed by rendering sample conversations. A message counts as accepted if the result contains its text.
Rearranging does not change the texts of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Render = Callable[[list[Message]], str]  # returns "" if the template rejects the messages

SEPARATOR = "\n\n"  # separates the texts of joined messages


@dataclass(frozen=True, slots=True)
class RoleRules:
    """The sequences of roles that a template accepts.

    Attributes:
        takes_system: True if the template accepts a system message at the beginning.
        takes_more_systems: True if it accepts further system messages, at the beginning and later.
        takes_repeats: True if it accepts consecutive user messages and consecutive assistant messages.
        takes_call_after_text: True if it accepts an assistant message with tool calls directly after one without them.
        takes_user_after_result: True if it accepts a user message directly after a tool result.
        system_needs_final_user: True if it renders the system message only if the last message is a user message.
    """

    takes_system: bool = True
    takes_more_systems: bool = True
    takes_repeats: bool = True
    takes_call_after_text: bool = True
    takes_user_after_result: bool = True
    system_needs_final_user: bool = False


def probe_roles(render: Render) -> RoleRules:
    """Return the rules of a template, with default values for the rules that concern tool calls."""
    if not render(_chat("user")):
        return RoleRules()  # the model has no template
    takes_system = _takes(render, "system", "user")
    return RoleRules(
        takes_system=takes_system,
        takes_more_systems=all(
            _takes(render, *roles)
            for roles in (
                ("system", "system", "user"),
                ("system", "user", "assistant", "system", "user"),
                ("system", "user", "assistant", "user", "system"),
            )
        ),
        takes_repeats=_takes(render, "user", "user")
        and _takes(render, "user", "assistant", "assistant", "user", "user"),
        system_needs_final_user=takes_system and not _takes(render, "system", "user", "assistant"),
    )


def place_systems(messages: list[Message], rules: RoleRules, *, is_continuation: bool) -> list[Message]:
    """Move system messages to positions at which the template accepts them. Return the resulting messages.

    If the template accepts only one system message, all system messages are joined into one at the beginning. If it
    accepts none, or if ``messages`` continue an earlier conversation (``is_continuation``), the text of each system
    message becomes part of the next user message.
    """
    if rules.takes_system and rules.takes_more_systems:
        return messages
    if is_continuation or not rules.takes_system:
        return _in_user_messages(messages)
    texts = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": _joined_text(texts)}, *rest] if texts else messages


def join_repeats(messages: list[Message], rules: RoleRules) -> list[Message]:
    """Join consecutive messages that the template does not accept in sequence. Return the resulting messages."""
    groups: list[list[Message]] = []
    for message in messages:
        if groups and _must_join(groups[-1][-1], message, rules, first=groups[-1][0]):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [_joined(group) for group in groups]


def keep_system(messages: list[Message], rules: RoleRules) -> list[Message]:
    """Return the messages. If the template would omit the system message, move its text to the last user message."""
    is_kept = not rules.system_needs_final_user or messages[-1]["role"] == "user"
    if is_kept or messages[0]["role"] != "system":
        return messages
    last = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=0)
    system, user = messages[0], messages[last]
    texts = [system["content"]] if last == 0 else [system["content"], user["content"]]
    joined = {**user, "role": "user", "content": _joined_text(texts)}
    return [*messages[1:last], joined, *messages[last + 1 :]]


def _in_user_messages(messages: list[Message]) -> list[Message]:
    """Move the text of each system message to the start of the next user message. Return the resulting messages.

    System messages without a later user message become one user message at the same position.
    """
    placed: list[Message] = []
    held: list[str] = []  # texts of the system messages since the last user message
    start = 0  # index in ``placed`` of the first of these texts
    for message in messages:
        if message["role"] == "system":
            start = start if held else len(placed)
            held.append(message["content"])
        elif message["role"] == "user" and held:
            placed.append({**message, "content": _joined_text([*held, message["content"]])})
            held = []
        else:
            placed.append(message)
    if held:
        placed.insert(start, {"role": "user", "content": _joined_text(held)})
    return placed


def _must_join(one: Message, other: Message, rules: RoleRules, first: Message) -> bool:
    """Return True if ``other`` must be joined to the group that begins with ``first`` and ends with ``one``."""
    if first["role"] == "tool":
        return other["role"] == "user" and not rules.takes_user_after_result
    if one["role"] == other["role"] == "assistant" and ("tool_calls" in one or "tool_calls" in other):
        return not rules.takes_call_after_text
    return one["role"] == other["role"] in ("user", "assistant") and not rules.takes_repeats


def _joined(group: list[Message]) -> Message:
    """Return the first message of the group, with the text, the reasoning and the tool calls of all its messages."""
    if len(group) == 1:
        return group[0]
    joined = {**group[0], "content": _joined_text([message["content"] for message in group])}
    reasoning = _joined_text([message.get("reasoning_content", "") for message in group])
    calls = [call for message in group for call in message.get("tool_calls", ())]
    return joined | ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


def _joined_text(texts: list[str]) -> str:
    return SEPARATOR.join(filter(None, texts))


def _takes(render: Render, *roles: str) -> bool:
    """Return True if the template renders the text of each message exactly once."""
    messages = _chat(*roles)
    rendered = render(messages)
    return all(rendered.count(message["content"]) == 1 for message in messages)


def _chat(*roles: str) -> list[Message]:
    return [{"role": role, "content": f"probe-text-{number}."} for number, role in enumerate(roles)]
