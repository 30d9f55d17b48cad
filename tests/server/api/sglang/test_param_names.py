"""Errors of POST /generate name the fields of that route."""

from __future__ import annotations

from typing import Any

import pytest

from ...conftest import World

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "sampling_params.min_new_tokens"),
        ({"max_new_tokens": 9999}, "sampling_params.max_new_tokens"),
        ({"stop": ["x"] * 17}, "sampling_params.stop"),
        ({"stop_token_ids": [9999]}, "sampling_params.stop_token_ids"),
        ({"logit_bias": {"9999": 1}}, "sampling_params.logit_bias"),
    ],
)
async def test_an_error_names_the_field_of_the_route(sampling: dict[str, Any], param: str, world: World) -> None:
    reply = await world.client.post("/generate", json={"text": "hi", "sampling_params": sampling})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param)
    assert f"'{param}'" in error["message"] or "context length" in error["message"]


async def test_too_many_choices_name_the_field_of_the_route(world: World) -> None:
    body = {"text": ["hi"] * 9, "sampling_params": {"n": 128}}
    assert (await world.client.post("/generate", json=body)).json()["error"]["param"] == "sampling_params.n"
