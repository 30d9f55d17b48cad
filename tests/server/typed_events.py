"""Routes whose streams have named events, with functions to call them, and a model with reasoning and tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from .conftest import World, ok

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 👩‍👩‍👧"}}\n</tool_call>'
REPLIES = (
    "Grüße 👩‍👩‍👧 日本",
    "<think>\nwhy\n</think>\n\nyes",
    f"<think>why</think>Look.\n{CALL}{CALL}",
    "<think>only",
    "</think>",
)


@dataclass(frozen=True)
class TypedRoute:
    """A route and the smallest body that it accepts. A field that is None is left out of the body."""

    path: str
    body: dict[str, Any]

    async def ask(self, world: World, **fields: Any) -> httpx.Response:
        body = {name: value for name, value in (self.body | fields).items() if value is not None}
        return await world.client.post(self.path, json=body)

    async def whole(self, world: World, **fields: Any) -> dict[str, Any]:
        """The answer without a stream, which must be a success."""
        body: dict[str, Any] = ok(await self.ask(world, **fields)).json()
        return body

    async def streamed(self, world: World, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream."""
        return typed_events(ok(await self.ask(world, stream=True, **fields)).text)


def typed_events(text: str) -> list[dict[str, Any]]:
    """The JSON of every event, whose name is its type; keep-alives are left out."""
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            found.append(event)
    return found
