"""The prompt tokens of all choices of a request are bounded."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.server.api import sampling_params

from ..conftest import World, ok

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "x" * 100, "n": 11}, "n"),
        ("/v1/completions", {"prompt": ["x" * 110] * 10}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 100}], "n": 11}, "n"),
        ("/generate", {"text": "x" * 100, "sampling_params": {"n": 11}}, "sampling_params.n"),
        ("/generate", {"text": ["x" * 110] * 10}, "text"),
        ("/generate", {"input_ids": [[9] * 110] * 10}, "input_ids"),
    ],
)
async def test_prompt_tokens_times_choices_are_bounded(
    path: str, body: dict[str, Any], param: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(await world.client.post(path, json=body))
    monkeypatch.setattr(sampling_params, "MAX_PROMPT_TOKENS", 1000)
    error = (await world.client.post(path, json=body)).json()["error"]
    assert error["param"] == param
    assert "exceed the limit of 1000 tokens per request" in error["message"]
