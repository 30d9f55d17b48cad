"""Tools for chat templates without tool support: the functions are described in the system message, and tool calls and
results are written as plain text.

Calls use the hermes format, which small models follow most reliably.
"""

from __future__ import annotations

import json
from typing import Any

from .tool_fields import ToolOptions

Message = dict[str, Any]

OFFER = """You can call these functions. Each line describes one: its name, what it does, and a JSON schema of its \
arguments.

{functions}

To call a function, write its name and its arguments as JSON between these tags:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>
You can call several functions, one after the other. What they return comes back between <tool_response> and \
</tool_response>. When no function helps, answer as usual."""
REQUIRED = """You can call these functions. Each line describes one: its name, what it does, and a JSON schema of its \
arguments.

{functions}

Answer with nothing but calls, as a JSON list:
[{{"name": "function name", "arguments": {{"argument": "value"}}}}]"""
NAMED = """You call this function. The line gives its name, what it does, and a JSON schema of its arguments.

{functions}

Answer with nothing but its arguments, as a JSON object."""


def with_tools(messages: list[Message], options: ToolOptions, *, takes_system: bool) -> list[Message]:
    """Add a description of the functions to the first message.

    If that is neither a system nor a user message, or if it is a user message and the template accepts system messages
    (``takes_system``), the description becomes a new first message.
    """
    text = _offer(options)
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    if takes_system:
        return [{"role": "system", "content": text}, *messages]
    if first["role"] == "user":
        return [{**first, "content": f"{text}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "user", "content": text}, *messages]


def calls_as_text(messages: list[Message]) -> list[Message]:
    """Convert tool calls and tool results to text. Consecutive results become one user message."""
    plain: list[Message] = []
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        _flush(results, plain)
        plain.append(_with_calls(message))
    _flush(results, plain)
    return plain


def _flush(results: list[str], plain: list[Message]) -> None:
    if results:
        plain.append({"role": "user", "content": "\n".join(results)})
        results.clear()


def _with_calls(message: Message) -> Message:
    calls = [f"<tool_call>\n{_call(call['function'])}\n</tool_call>" for call in message.get("tool_calls", ())]
    if not calls:
        return message
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message["content"]]), *calls])}


def _call(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": {text}}}'


def _offer(options: ToolOptions) -> str:
    tools = [tool for tool in options.tools if options.named in (None, tool["function"]["name"])]
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    form = NAMED if options.named is not None else REQUIRED if options.required else OFFER
    return form.format(functions=functions)
