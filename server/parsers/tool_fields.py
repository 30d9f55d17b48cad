"""The tool fields of requests: the offered functions, and which of them may or must be called.

The module does not depend on templates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from ebbtide.errors import Rejected

MAX_TOOLS = 128
MAX_NAME = 64
GOOD_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
CHOICES = "'none', 'auto', 'required', a function or 'allowed_tools'"


class FunctionFields(msgspec.Struct):
    """A function in OpenAI's format.

    Attributes:
        parameters: JSON schema of an object; None for a function without parameters.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """One entry of ``tools``."""

    type: str
    function: FunctionFields | None = None


class ToolFields(Protocol):
    """The tool fields that all routes with tools share."""

    @property
    def tools(self) -> list[Tool] | None:
        """The offered functions."""

    @property
    def tool_choice(self) -> Any:
        """The functions that may or must be called."""

    @property
    def parallel_tool_calls(self) -> bool | None:
        """False if an answer may have at most one tool call."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The tools that a request offers, and the tool calls that it allows or requires.

    Attributes:
        tools: the functions in the format that chat templates expect.
        schemas: name → JSON schema of the arguments, for each function that may be called.
        required: True if the answer must consist of tool calls.
        named: the name of the function that the answer must call, once; None if no function is prescribed.
        max_calls: maximum number of calls in an answer; None for no limit.
    """

    tools: list[dict[str, Any]]
    schemas: Mapping[str, Mapping[str, Any]]
    required: bool = False
    named: str | None = None
    max_calls: int | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    mode: str
    named: str | None = None
    allowed: tuple[str, ...] | None = None


def tool_options(fields: ToolFields) -> ToolOptions | None:
    """Return the request's tool options; None if no function is offered.

    Raises Rejected if a tool or ``tool_choice`` is invalid.
    """
    functions = _functions(fields.tools or [])
    choice = _choice(fields.tool_choice)
    if not functions and choice.mode == "required":
        raise Rejected("'tool_choice' requires a tool call, but there are no 'tools'.", param="tool_choice")
    for name in choice.allowed or ():
        if name not in functions:
            raise Rejected(f"'tool_choice' names {name[:100]!r}, which is not in 'tools'.", param="tool_choice")
    if not functions or choice.mode == "none":
        return None
    schemas = {name: _schema(function) for name, function in functions.items()}
    return ToolOptions(
        tools=[_shown(function) for function in functions.values()],
        schemas=schemas if choice.allowed is None else {name: schemas[name] for name in choice.allowed},
        required=choice.mode == "required",
        named=choice.named,
        max_calls=1 if fields.parallel_tool_calls is False or choice.named is not None else None,
    )


def _functions(tools: list[Tool]) -> dict[str, FunctionFields]:
    if len(tools) > MAX_TOOLS:
        raise Rejected(f"'tools' has {len(tools)} entries; at most {MAX_TOOLS} are allowed.", param="tools")
    functions: dict[str, FunctionFields] = {}
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if tool.type != "function" or tool.function is None:
            raise Rejected(f"'{param}' is not a function, which is the only supported type of tool.", param=param)
        name = tool.function.name
        if GOOD_NAME.fullmatch(name) is None:
            raise Rejected(
                f"'{param}' has the name {name[:100]!r}: names have 1 to {MAX_NAME} letters, digits, '_' or '-'.",
                param=param,
            )
        if name in functions:
            raise Rejected(f"'tools' has the function {name!r} twice.", param=param)
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise Rejected(f"'{param}' has parameters that are not a JSON schema of an object.", param=param)
        functions[name] = tool.function
    return functions


def _schema(function: FunctionFields) -> dict[str, Any]:
    return function.parameters or {"type": "object", "properties": {}}


def _shown(function: FunctionFields) -> dict[str, Any]:
    shown = {"name": function.name, "description": function.description or "", "parameters": _schema(function)}
    return {"type": "function", "function": shown}


def _choice(choice: Any) -> _Choice:
    if choice is None:
        return _Choice("auto")
    if choice in ("none", "auto", "required"):
        return _Choice(choice)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        name = _name(choice)
        return _Choice("required", name, (name,))
    if kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools", choice))
    raise Rejected(f"'tool_choice' must be {CHOICES}.", param="tool_choice")


def _allowed(choice: Any) -> _Choice:
    """Parse a ``tool_choice`` that allows a subset of the functions.

    Accepts the nested format of the chat API, and the flat format of the responses API.
    """
    tools = choice.get("tools") if isinstance(choice, dict) else None
    if not isinstance(tools, list) or not tools or choice.get("mode") not in ("auto", "required"):
        raise Rejected(
            "'tool_choice' of type 'allowed_tools' needs a 'mode', auto or required, and 'tools'.", param="tool_choice"
        )
    return _Choice(choice["mode"], None, tuple(dict.fromkeys(_name(tool) for tool in tools)))


def _name(entry: Any) -> str:
    """Return the function name in ``{"function": {"name": …}}`` or ``{"name": …}``."""
    function = entry.get("function", entry) if isinstance(entry, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise Rejected("'tool_choice' does not name a function: it needs 'function.name'.", param="tool_choice")
    return name
