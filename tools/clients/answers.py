"""The answers of the simulated model to the clients, and the results that the clients must return."""

from __future__ import annotations

import json
from typing import Any

Rule = dict[str, Any]  # an entry of --sim-script: {"contains": texts of the prompt, "output": text}

CITY = {"city": "Zürich 👩‍👩‍👧", "days": 2}
# Sent to the scripts of the clients as JSON.
EXPECTED = {
    "hello": "Hello 👩‍👩‍👧 日本, größer!",
    "city": CITY,
    "result": "sunny, 21 degrees",  # what the tool get_weather returns
    "weather": "It is sunny in Zürich 👩‍👩‍👧.",
}


def call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as the model writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def rule(output: str, *contains: str) -> Rule:
    """Return a rule: ``output`` for prompts that contain all these texts."""
    return {"contains": list(contains), "output": output}


COMMON = [
    rule(str(EXPECTED["weather"]), "What is the weather", str(EXPECTED["result"])),
    rule("I look.\n" + call("get_weather", CITY), "What is the weather"),
    rule(json.dumps(CITY, ensure_ascii=False), "Fill in the form"),
    rule(json.dumps([{"name": "get_weather", "arguments": CITY}], ensure_ascii=False), "Call a tool"),
    rule(str(EXPECTED["hello"])),
]
