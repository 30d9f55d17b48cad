"""The tool fields of a request and their meaning."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ebbtide.errors import Rejected
from ebbtide.server.parsers.tool_fields import Tool, ToolOptions, tool_options

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


class Body(msgspec.Struct):
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


def tool(name: str, **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def options(**fields: object) -> ToolOptions | None:
    return tool_options(msgspec.convert(fields, Body))


def test_without_tools_there_are_no_tool_options() -> None:
    assert options() is None
    assert options(tools=[]) is None
    assert options(tools=[], tool_choice="auto") is None
    assert options(tool_choice="none") is None


def test_none_hides_the_tools() -> None:
    assert options(tools=[tool("f")], tool_choice="none") is None


def test_auto_offers_all() -> None:
    offered = options(
        tools=[tool("f", description="d", strict=True), {"type": "function", "function": {"name": "g-2"}}]
    )
    assert offered is not None
    shown = {"name": "f", "description": "d", "parameters": SCHEMA}
    assert offered.tools[0] == {"type": "function", "function": shown}
    assert offered.schemas == {"f": SCHEMA, "g-2": {"type": "object", "properties": {}}}
    assert (offered.required, offered.named, offered.max_calls) == (False, None, None)


def test_required_named_and_single_calls() -> None:
    tools = [tool("f"), tool("g")]
    required = options(tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert required is not None
    assert (required.required, required.named, required.max_calls) == (True, None, 1)
    named = options(tools=tools, tool_choice={"type": "function", "function": {"name": "g"}})
    assert named is not None
    assert (named.required, named.named, named.max_calls, list(named.schemas)) == (True, "g", 1, ["g"])
    assert len(named.tools) == 2


@pytest.mark.parametrize("nested", [True, False])
def test_some_tools_can_be_allowed(nested: bool) -> None:
    inner = {
        "mode": "auto",
        "tools": [{"type": "function", "function": {"name": "g"}}, {"type": "function", "name": "g"}],
    }
    choice = {"type": "allowed_tools", "allowed_tools": inner} if nested else {"type": "allowed_tools", **inner}
    offered = options(tools=[tool("f"), tool("g")], tool_choice=choice)
    assert offered is not None
    assert (list(offered.schemas), len(offered.tools), offered.required) == (["g"], 2, False)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tools", {"tools": [tool(f"f{i}") for i in range(129)]}),
        ("tools[1]", {"tools": [tool("f"), tool("f")]}),
        ("tools[0]", {"tools": [tool("")]}),
        ("tools[0]", {"tools": [tool("x" * 65)]}),
        ("tools[0]", {"tools": [tool("a b")]}),
        ("tools[0]", {"tools": [tool("ab\n")]}),
        ("tools[0]", {"tools": [tool("naïve")]}),
        ("tools[0]", {"tools": [{"type": "web_search"}]}),
        ("tools[0]", {"tools": [{"type": "function"}]}),
        ("tools[0]", {"tools": [tool("f", parameters={"type": "array"})]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": "sometimes"}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "function"}}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "function", "function": "f"}}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "custom"}}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": []}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "allowed_tools": 3}}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}),
        ("tool_choice", {"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [3]}}),
        (
            "tool_choice",
            {"tools": [tool("f")], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "g"}]}},
        ),
    ],
)
def test_invalid_tool_options_are_refused(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as refusal:
        options(**fields)
    assert (refusal.value.status, refusal.value.param) == (400, param)
