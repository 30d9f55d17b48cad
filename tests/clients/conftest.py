"""A daemon with scripted answers, for unmodified client packages."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# Set before any client is imported, because no client may use the network.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}

CITY: dict[str, Any] = {"city": "Zürich 👩‍👩‍👧", "days": 2}
FORM = json.dumps(CITY, ensure_ascii=False)
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {FORM}}}\n</tool_call>'
# The beginning of the conversation selects the answer of the model.
SCRIPT = {
    "hello": "Hello 👩‍👩‍👧 日本, größer!",
    "ask": f"I look.\n{CALL}",
    "ask twice": f"{CALL}\n{CALL}",
    "told": "It is sunny.",
    "think": "<think>\nWhy 日本?\n</think>\n\nYes.",
    "stop": "before STOP after",
    "form": FORM,
    "must call": f'[{{"name": "weather", "arguments": {FORM}}}]',
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def url(start_shared_daemon: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the daemon; its model is "sim"."""
    script: Path = tmp_path_factory.mktemp("clients") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    address: str = start_shared_daemon("--sim-script", str(script), "--reasoning-parser", "think", keep=True).url
    return address


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
