"""The tools of a request to Anthropic's messages API, offered to the model as functions.

Anthropic defines some tools by their type only. For bash, text_editor and memory, which the client runs, the model gets
a schema from this module. The other tools run on Anthropic's servers or need images, and are not offered to the model.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ebbtide.errors import Rejected

from ...http.strict_json import convert
from ...parsers.tool_fields import FunctionFields, Tool

VERSION = re.compile(r"_\d{8}$")
TEXT = {"type": "string"}
LINES = {"type": "array", "items": {"type": "integer"}, "description": "First and last line to view; -1 is the end."}

# The commands that text_editor and memory share, and their fields except ``path``.
EDITS = ["view", "create", "str_replace", "insert"]
EDIT_FIELDS = {
    **dict.fromkeys(("file_text", "old_str", "new_str", "insert_text"), TEXT),
    "insert_line": {"type": "integer"},
    "view_range": LINES,
}


class ClientTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs, as the request defines it.

    Only a tool of the type "custom", which is the default, has a description and a schema.
    """

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class OfferedTools:
    """The tools of a request, converted to functions.

    Attributes:
        functions: the functions, in the order of the tools.
        paths: for each function, the path of the field that defines its tool.
        left_out: types of the tools that are not offered to the model.
    """

    def __init__(self, tools: list[dict[str, Any]] | None) -> None:
        self.functions: list[Tool] = []
        self.paths: list[str] = []
        self.left_out: set[str] = set()
        for index, raw in enumerate(tools or []):
            kind = raw.get("type")
            known = kind is None or kind == "custom" or _family(kind) in FAMILIES
            if known:
                self.paths.append(f"tools[{index}]")
                self.functions.append(_function(convert(raw, ClientTool, self.paths[-1]), self.paths[-1]))
            else:
                self.left_out.add(str(kind)[:50])


def _family(kind: Any) -> str:
    """Return the type of a tool without its version; "" if the type has no version."""
    return VERSION.sub("", kind) if isinstance(kind, str) and VERSION.search(kind) else ""


def _function(tool: ClientTool, where: str) -> Tool:
    family = FAMILIES.get(_family(tool.type))
    schema = tool.input_schema if family is None else family.schema
    if schema is None:
        raise Rejected(f"'{where}' needs an 'input_schema'.")
    description = tool.description if family is None else family.description
    return Tool("function", FunctionFields(tool.name, description, schema, tool.strict))


class _Family(msgspec.Struct, frozen=True):
    description: str
    schema: dict[str, Any]


def _commands(description: str, commands: list[str], **properties: Any) -> _Family:
    command = {"type": "string", "enum": commands}
    return _Family(
        description, {"type": "object", "properties": {"command": command, **properties}, "required": ["command"]}
    )


FAMILIES = {
    "bash": _Family(
        "Runs a command in a bash shell that keeps its state between calls, and returns the output.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command; needed unless restart is true."},
                "restart": {"type": "boolean", "description": "Restart the shell."},
            },
        },
    ),
    "text_editor": _commands(
        "Views and edits text files. view shows a file or a directory, create writes a new file with file_text,"
        " str_replace replaces old_str, which must occur once, by new_str, insert adds insert_text after line"
        " insert_line.",
        EDITS,
        path={"type": "string", "description": "Absolute path of the file or directory."},
        **EDIT_FIELDS,
    ),
    "memory": _commands(
        "Reads and writes files below /memories that persist between conversations. view shows a file or directory,"
        " create writes a file with file_text, str_replace replaces old_str by new_str, insert adds insert_text after"
        " line insert_line, delete removes path, rename moves old_path to new_path.",
        [*EDITS, "delete", "rename"],
        path={"type": "string", "description": "Path below /memories."},
        **EDIT_FIELDS,
        old_path=TEXT,
        new_path=TEXT,
    ),
}
