"""The tools of a request to the responses API, offered to the model as functions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from ebbtide.errors import Rejected

from ...http.strict_json import convert
from ...parsers.tool_fields import MAX_NAME, MAX_TOOLS, FunctionFields, Tool
from .call_forms import FORMS, FUNCTION, TOOL_SEARCH, CallForm

SEPARATOR = "__"  # separates the name of a namespace from the name of a function in it
SERVER_RUN = "server"


class ToolFormat(msgspec.Struct, kw_only=True):
    """The format of a custom tool's input. A grammar is only described to the model and not enforced."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class ToolEnvironment(msgspec.Struct, kw_only=True):
    """The environment in which a shell tool runs."""

    type: str


class ClientTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs. The type of the tool determines which fields it has."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None
    environment: ToolEnvironment | None = None
    execution: str | None = None
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class ClientCall:
    """A call of a tool as the client knows it: the type of the call item, and the tool's name and namespace."""

    form: CallForm
    name: str
    namespace: str | None = None

    def item(self, call_id: str | None, arguments: str) -> dict[str, Any]:
        """Return the fields of the call item except id and status.

        arguments: the arguments as the model generated them.
        """
        item = {"type": self.form.item, "call_id": call_id}
        if self.form.is_named:
            item["name"] = self.name
        if self.namespace is not None:
            item["namespace"] = self.namespace
        return {**item, self.form.content: self.form.content_of(arguments), **self.form.more}


class OfferedTools:
    """The tools of a request, converted to functions.

    Attributes:
        functions: the functions, in the order of the tools.
        paths: for each function, the path of the field that defines its tool.
        left_out: types of the tools that are not offered, because the client does not run them.
    """

    def __init__(self, tools: list[dict[str, Any]] | None) -> None:
        self.functions: list[Tool] = []
        self.paths: list[str] = []
        self.left_out: set[str] = set()
        self._calls: dict[str, ClientCall] = {}
        self._names: dict[ClientCall, str] = {}
        for index, tool in enumerate(tools or []):
            self._add(tool, f"tools[{index}]")

    def add_found(self, tools: list[dict[str, Any]], where: str) -> None:
        """Add those tools that an input item defines and that are not offered yet.

        Raises Rejected if a tool is invalid.
        """
        for index, tool in enumerate(tools):
            self._add(tool, f"{where}[{index}]", skip_known=True)

    def call_of(self, function: str) -> ClientCall:
        """Return the tool that a call of ``function`` concerns, as the client knows it."""
        return self._calls.get(function) or ClientCall(FUNCTION, function)

    def function_of(self, call: ClientCall) -> str:
        """Return the function name of the tool in ``call``, even if the tool is no longer offered."""
        return self._names.get(call) or _qualified(call)

    def choice(self, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        """Return ``tool_choice`` with each tool replaced by its function."""
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") != "allowed_tools":
            return self._chosen(choice) or choice
        tools = choice.get("tools")
        if not isinstance(tools, list) or not tools:
            return choice
        offered = [self._chosen(tool) or tool for tool in tools if not self._is_left_out(tool)]
        if offered or choice.get("mode") != "auto":
            return {**choice, "tools": offered}
        return "none"

    def _add(self, raw: dict[str, Any], where: str, *, skip_known: bool = False) -> None:
        kind = raw.get("type")
        if kind == "namespace":
            space = convert(raw, ClientTool, where)
            for index, inner in enumerate(space.tools or []):
                self._add_tool(inner, f"{where}.tools[{index}]", space, skip_known=skip_known)
        else:
            self._add_tool(raw, where, skip_known=skip_known)

    def _add_tool(self, raw: dict[str, Any], where: str, space: ClientTool | None = None, *, skip_known: bool) -> None:
        tool = convert(raw, ClientTool, where) if raw.get("type") in FORMS else None
        form = None if tool is None else _form_of(tool)
        if tool is None or form is None:
            self.left_out.add(str(raw.get("type"))[:50])
            return
        if form.is_named and tool.name is None:
            raise Rejected(f"'{where}' needs a 'name'.", param=f"{where}.name")
        call = ClientCall(form, tool.name or form.tool if form.is_named else form.tool, space.name if space else None)
        if skip_known and call in self._names:
            return
        if len(self.functions) == MAX_TOOLS:
            raise Rejected(f"'tools' has more than {MAX_TOOLS} tools that the client runs.", param="tools")
        function = self._free_name(call)
        self._calls[function], self._names[call] = call, function
        self.functions.append(Tool("function", _fields(function, tool, form, space)))
        self.paths.append(where)

    def _free_name(self, call: ClientCall) -> str:
        """Return the function name of ``call``, with a number appended if the name is taken.

        A function outside a namespace keeps the client's name in any case.
        """
        wanted = _qualified(call)
        if call.form is FUNCTION and call.namespace is None:
            return wanted
        name, number = wanted, 1
        while name in self._calls:
            number += 1
            name = f"{wanted[: MAX_NAME - 4]}_{number}"
        return name

    def _chosen(self, tool: Any) -> dict[str, Any] | None:
        """Convert ``tool``, an entry of ``tool_choice``, to an entry for the tool's function; None if it is invalid."""
        form = FORMS.get(str(tool.get("type"))) if isinstance(tool, dict) else None
        if form is None:
            return None
        name = tool.get("name") if form.is_named else form.tool
        if not isinstance(name, str):
            return None
        return {"type": "function", "name": self.function_of(ClientCall(form, name, tool.get("namespace")))}

    def _is_left_out(self, tool: Any) -> bool:
        return isinstance(tool, dict) and str(tool.get("type"))[:50] in self.left_out


def _form_of(tool: ClientTool) -> CallForm | None:
    """Return the type of the tool's call items; None if the client does not run the tool."""
    form = FORMS[tool.type]
    if form is TOOL_SEARCH and tool.execution != "client":
        return None
    hosted = tool.environment is not None and tool.environment.type != "local"
    return None if hosted else form


def _qualified(call: ClientCall) -> str:
    """Return the function name of ``call``, prefixed with its namespace, with invalid characters replaced.

    A function outside a namespace keeps the client's name, which is not validated here.
    """
    if call.form is FUNCTION and call.namespace is None:
        return call.name
    space = (call.namespace or "").rstrip("_")
    name = f"{space}{SEPARATOR}{call.name}" if space else call.name
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME] or call.form.tool


def _fields(name: str, tool: ClientTool, form: CallForm, space: ClientTool | None) -> FunctionFields:
    described = "\n\n".join(filter(None, [space.description if space else None, tool.description, form.description]))
    if tool.format is not None and tool.format.definition:
        described += f"\n\nThe input must match this {tool.format.syntax or ''} grammar:\n{tool.format.definition}"
    return FunctionFields(
        name, described or None, tool.parameters if form.schema is None else dict(form.schema), tool.strict
    )
