"""Random requests with tools are refused or answered, and never cause a server error."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ..conftest import LARGE_INFO, World

pytestmark = pytest.mark.anyio

RUNNER_INFO = LARGE_INFO
LEAVES: list[Any] = [
    *(None, True, 0, -1, 1.5, [], {}),
    *("", "f", "auto", "required", "function", "tool", "x" * 70, "é\n", "<|end|>"),
]
KEYS = [
    *("type", "function", "name", "parameters", "properties", "arguments", "id", "tools", "mode", "allowed_tools"),
    *("content", "role", "tool_calls", "tool_call_id", "strict", "description", "$ref", "items", "text"),
]


def odd(rng: random.Random, depth: int = 4) -> Any:
    """A random value that uses the keys of tool fields."""
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(LEAVES)
    if kind < 0.5:
        return [odd(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {rng.choice(KEYS): odd(rng, depth - 1) for _ in range(rng.randrange(5))}


def nearly(rng: random.Random, value: Any) -> Any:
    """A valid value, usually with a random change."""
    if rng.random() < 0.08:
        return odd(rng, 2)
    if isinstance(value, dict):
        return {key: nearly(rng, inner) for key, inner in value.items()}
    return [nearly(rng, inner) for inner in value] if isinstance(value, list) else value


GOOD = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}},
        {"type": "function", "function": {"name": "g", "description": "d", "strict": True}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "none",
}


@pytest.mark.parametrize("seed", range(4))
async def test_odd_requests_are_answered_or_refused(world: World, seed: int) -> None:
    rng = random.Random(seed)
    statuses = set()
    for number in range(100):
        body = nearly(rng, GOOD)
        body = {**body, "stream": bool(number % 2)} if isinstance(body, dict) else body
        reply = await world.client.post("/v1/chat/completions", json=body)
        assert reply.status_code in (200, 400), (seed, number, body, reply.text)
        statuses.add(reply.status_code)
    assert statuses == {200, 400}
