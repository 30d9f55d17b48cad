"""The model list in Anthropic's form."""

from __future__ import annotations

import pytest

from ebbtide.config import ServerConfig

from ..conftest import World

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.anyio
async def test_anthropics_clients_get_the_models_in_their_form(world: World) -> None:
    card = {"type": "model", "id": "org/sim", "display_name": "org/sim", "created_at": "1970-01-01T00:00:01Z"}
    listed = (await world.client.get("/v1/models?limit=20", headers=ANTHROPIC)).json()
    assert listed == {"data": [card], "has_more": False, "first_id": "org/sim", "last_id": "org/sim"}
    assert (await world.client.get("/v1/models/org/sim", headers=ANTHROPIC)).json() == card
    assert (await world.client.get("/v1/models/other", headers=ANTHROPIC)).status_code == 404


@pytest.mark.anyio
async def test_the_list_has_no_model_after_the_only_one(world: World) -> None:
    listed = (await world.client.get("/v1/models?after_id=org/sim", headers=ANTHROPIC)).json()
    assert listed == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.anyio
@pytest.mark.parametrize("config", [ServerConfig(served_model_name=("org/sim", "sim"))])
async def test_every_served_name_is_listed_and_accepted(world: World) -> None:
    listed = (await world.client.get("/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["org/sim", "sim"]
    page = (await world.client.get("/v1/models", headers=ANTHROPIC)).json()
    assert (page["first_id"], page["last_id"]) == ("org/sim", "sim")
    assert (await world.client.get("/v1/models/sim")).json()["id"] == "sim"
    body = {"model": "tide", "prompt": "a", "max_tokens": 1}
    refused = await world.client.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
