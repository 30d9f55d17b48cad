"""HTTP requests are counted by route template, independent of the paths and methods that clients send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.config import AccessConfig
from ebbtide.server.app import create_app
from ebbtide.server.http.access import access_from
from ebbtide.server.metrics.http_counts import OTHER

from ..conftest import ScriptedEngine, World, build_state

REQUESTS, RESPONSES = "ebbtide:http_requests_total", "ebbtide:http_responses_total"
pytestmark = pytest.mark.anyio


async def send_and_count(world: World) -> dict[tuple[str, ...], float]:
    """Return every HTTP sample by (name, endpoint, method and, if present, status)."""
    text = (await world.client.get("/metrics")).text
    return {
        (sample.name, *(sample.labels[key] for key in ("endpoint", "method", "status_code") if key in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "http_re" in sample.name and sample.name.startswith("ebbtide:")
    }


async def test_a_request_and_its_response_count_once(world: World) -> None:
    await world.chat()
    await world.chat(stream=True)
    await world.chat(temperature=-1)
    counts = await send_and_count(world)
    chat = ("/v1/chat/completions", "POST")
    assert counts[REQUESTS, *chat] == 3
    assert (counts[RESPONSES, *chat, "200"], counts[RESPONSES, *chat, "400"]) == (2, 1)
    assert counts["ebbtide:http_requests_active", *chat] == 0


async def test_endpoints_are_exported_before_their_first_request(world: World) -> None:
    counts = await send_and_count(world)
    assert counts[REQUESTS, "/v1/completions", "POST"] == 0
    assert counts["ebbtide:http_requests_active", "/metrics", "GET"] == 1  # the scrape itself


async def test_parameters_of_a_path_are_not_in_the_label(world: World) -> None:
    for name in ("a", "b", "x%22%5Cy"):
        await world.client.get(f"/v1/models/{name}")
    counts = await send_and_count(world)
    assert counts[REQUESTS, "/v1/models/{model_id:path}", "GET"] == 3


async def test_unknown_paths_and_methods_share_one_label(world: World) -> None:
    before = await send_and_count(world)
    for index in range(20):
        assert (await world.client.get(f"/nothing/{index}")).status_code == 404
        assert (await world.client.request(f"ODD{index}", "/health")).status_code == 405
        assert (await world.client.request("PUT", "/health")).status_code == 405
    after = await send_and_count(world)
    new = {key for key in after if key not in before}
    assert {key[1:] for key in new if key[0] == REQUESTS} == {(OTHER, "GET"), ("/health", OTHER), ("/health", "PUT")}
    assert after[RESPONSES, OTHER, "GET", "404"] == 20
    assert after[RESPONSES, "/health", OTHER, "405"] == 20


async def test_requests_without_a_key_count_too(engine: ScriptedEngine, world: World) -> None:
    access = access_from(AccessConfig(api_key=("secret",), root_path="/llm"))
    state = build_state(engine, world.state.config, access=access)
    transport: Any = world.client._transport
    transport.app = create_app(state)  # the fixture's client, another application
    assert (await world.client.get("/v1/models")).status_code == 401
    assert (await world.client.get("/llm/v1/models")).status_code == 401
    counts = await send_and_count(world)
    assert counts[RESPONSES, "/v1/models", "GET", "401"] == 2
    state.prompts.close()


async def test_a_disconnect_before_the_response_closes_the_request(engine: ScriptedEngine, world: World) -> None:
    engine.held = True
    asked = asyncio.create_task(world.chat())
    while not engine.requests:
        await asyncio.sleep(0)
    assert (await send_and_count(world))["ebbtide:http_requests_active", "/v1/chat/completions", "POST"] == 1
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    counts = await send_and_count(world)
    assert counts["ebbtide:http_requests_active", "/v1/chat/completions", "POST"] == 0
    assert not [key for key in counts if key[0] == RESPONSES and key[1] == "/v1/chat/completions"]
