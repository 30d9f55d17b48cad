"""The model list in Anthropic's form."""

from __future__ import annotations

import pytest

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
async def test_no_model_comes_after_the_only_one(world: World) -> None:
    listed = (await world.client.get("/v1/models?after_id=org/sim", headers=ANTHROPIC)).json()
    assert listed == {"data": [], "has_more": False, "first_id": None, "last_id": None}
