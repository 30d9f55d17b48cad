"""The types of call items in the responses API.

Each tool that the client runs is described to the model as a function. Requests and responses contain these items in
place of function calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...http.strict_json import parse_arguments

INPUT = "input"  # the only argument of a custom tool's function


@dataclass(frozen=True, slots=True, eq=False)
class CallForm:
    """One type of call item. The item of the result has the type ``<item>_output``.

    Attributes:
        tool: the ``type`` of the tool.
        item: the ``type`` of the item.
        id_prefix: prefix of the item's id.
        content: name of the field with the arguments of the call.
        event: name of the events that stream the content; None if the item is sent only when it is complete.
        schema: the parameters of the function; None if the request defines them.
        description: the description of the function; "" if the request defines it.
        fixed: entries of the content that every call has.
        defaults: entries that are added to the content if the model omits them, because clients need them.
        more: additional fields of the item.
    """

    tool: str
    item: str
    id_prefix: str
    content: str
    event: str | None = None
    schema: Mapping[str, Any] | None = None
    description: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """True if the client chooses the tool's name; other tools are named by their type."""
        return self in (FUNCTION, CUSTOM)

    def content_of(self, arguments: str) -> Any:
        """Convert the arguments that the model generated to the content of the item."""
        if self is FUNCTION:
            return arguments
        if self is CUSTOM:
            return _input_of(arguments)
        return {**self.defaults, **(parse_arguments(arguments) or {}), **self.fixed}

    def arguments_of(self, content: Any) -> str:
        """Convert the content of an item to the arguments of the function."""
        if self is CUSTOM:
            return json.dumps({INPUT: content}, ensure_ascii=False)
        if isinstance(content, str):
            return content
        given = {key: value for key, value in (content or {}).items() if key not in self.fixed and value is not None}
        return json.dumps(given, ensure_ascii=False)


def _input_of(arguments: str) -> str:
    """Return the input of a custom tool: the argument ``input``, or the only argument if there is just one.

    Returns the whole text of the arguments if they are not a JSON object or contain no such string.
    """
    parsed = parse_arguments(arguments)
    if parsed is None:
        return arguments
    texts = [value for value in parsed.values() if isinstance(value, str)]
    found = parsed.get(INPUT, texts[0] if len(texts) == len(parsed) == 1 else None)
    return found if isinstance(found, str) else arguments


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
MILLISECONDS = {"type": "integer", "description": "Time limit in milliseconds."}

FUNCTION = CallForm("function", "function_call", "fc_", "arguments", "function_call_arguments")
CUSTOM = CallForm(
    "custom",
    "custom_tool_call",
    "ctc_",
    INPUT,
    "custom_tool_call_input",
    _object([INPUT], input={"type": "string", "description": "The whole input of the tool, as plain text."}),
)
LOCAL_SHELL = CallForm(
    "local_shell",
    "local_shell_call",
    "lsh_",
    "action",
    schema=_object(
        ["command"],
        command={**TEXTS, "description": 'The program and its arguments, such as ["ls", "-l"].'},
        working_directory=TEXT,
        timeout_ms=MILLISECONDS,
        env={"type": "object", "additionalProperties": TEXT, "description": "Environment variables."},
        user=TEXT,
    ),
    description="Runs a command on the user's machine and returns its output.",
    fixed={"type": "exec"},
    defaults={"command": [], "env": {}},
)
SHELL = CallForm(
    "shell",
    "shell_call",
    "sh_",
    "action",
    schema=_object(
        ["commands"],
        commands={**TEXTS, "description": "Shell commands; each is run separately."},
        timeout_ms=MILLISECONDS,
        max_output_length={"type": "integer", "description": "Maximum number of characters of output per command."},
    ),
    description="Runs shell commands on the user's machine and returns their output.",
    defaults={"commands": [], "timeout_ms": None, "max_output_length": None},
)
APPLY_PATCH = CallForm(
    "apply_patch",
    "apply_patch_call",
    "apc_",
    "operation",
    schema=_object(
        ["type", "path"],
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string", "description": "Path of the file."},
        diff={"type": "string", "description": "The changes to the file; not used by delete_file."},
    ),
    description="Creates, updates or deletes one file.",
    defaults={"type": "update_file", "path": "", "diff": ""},
)
TOOL_SEARCH = CallForm(
    "tool_search",
    "tool_search_call",
    "tsc_",
    "arguments",
    description="Searches for further tools.",
    more={"execution": "client"},
)

FORMS = {form.tool: form for form in (FUNCTION, CUSTOM, LOCAL_SHELL, SHELL, APPLY_PATCH, TOOL_SEARCH)}
ITEMS = {form.item: form for form in FORMS.values()}
