"""Streams whose events have names."""

from __future__ import annotations

import json
from typing import Any


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
