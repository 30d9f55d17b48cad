"""API keys on every route, over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from ebbtide.config import AccessConfig, LimitsConfig, ServerConfig
from ebbtide.server.app import create_app, routes
from ebbtide.server.http.access import access_from
from ebbtide.server.http.auth import PUBLIC_PATHS, Keys
from ebbtide.server.route import Route

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio

USER, OTHER, ADMIN = "user-key-1", "user-key-2", "admin-key"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def access() -> AccessConfig:
    return AccessConfig(api_key=(USER, OTHER), admin_api_key=ADMIN)


@pytest.fixture
async def world(engine: ScriptedEngine, config: ServerConfig, access: AccessConfig) -> AsyncIterator[World]:
    state = build_state(engine, config, access=access_from(access))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(engine, state, client)
    state.prompts.close()


def concrete(route: Route) -> str:
    return re.sub(r"\{.*?\}", "x", route.path)


async def test_every_route_except_the_probes_needs_a_key(world: World) -> None:
    paths = {concrete(route) for route in routes(world.state)} | {"/docs", "/redoc", "/openapi.json", "/nothing", "/"}
    assert paths > PUBLIC_PATHS
    for path in paths - PUBLIC_PATHS:
        for method in METHODS:
            for headers in ({}, bearer("wrong"), {"x-api-key": "wrong"}, {"authorization": f"Basic {USER}"}):
                reply = await world.client.request(method, path, headers=headers)
                assert reply.status_code == 401, (method, path, headers)
                assert reply.headers["www-authenticate"] == "Bearer"
    for path in PUBLIC_PATHS:
        assert (await world.client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "path", ["//v1/models", "/V1/models", "/v1/models/", "/health/", "//health", "/%68ealth/../v1/models", "/metrics/x"]
)
async def test_other_spellings_of_a_public_path_need_a_key(world: World, path: str) -> None:
    assert (await world.client.get(path)).status_code == 401


async def test_the_refusal_is_an_envelope_with_a_request_id(world: World) -> None:
    reply = await world.client.get("/v1/models", headers={"x-request-id": "mine"})
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("authentication_error", "invalid_api_key", None)
    assert reply.headers["x-request-id"] == "mine"


@pytest.mark.parametrize(
    "headers",
    [
        bearer(USER),
        bearer(OTHER),
        bearer(ADMIN),
        {"authorization": f"bearer {USER}"},
        {"authorization": f"BEARER   {USER} "},
        {"x-api-key": USER},
        {"x-api-key": USER, "authorization": "Bearer none"},
    ],
)
async def test_a_valid_key_is_accepted_in_every_form(world: World, headers: dict[str, str]) -> None:
    assert (await world.client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "key", [b"", b" ", b"\xff\xfe", USER[:-1].encode(), USER.encode() + b"x", USER.upper().encode()]
)
async def test_other_bytes_are_not_accepted_as_a_key(world: World, key: bytes) -> None:
    for headers in ([(b"authorization", b"Bearer " + key)], [(b"x-api-key", key)]):
        assert (await world.client.get("/v1/models", headers=headers)).status_code == 401


async def test_options_needs_no_key(world: World) -> None:
    reply = await world.client.options("/v1/chat/completions")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"


STEERS = {"/flush_cache", "/pause_generation", "/continue_generation"}


USES = {
    *("/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses", "/v1/responses/{response_id}"),
    *("/v1/responses/{response_id}/cancel", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings"),
    *("/v1/models", "/v1/models/{model_id:path}", "/v1/sessions", "/v1/sessions/{session_id}"),
    *("/open_session", "/close_session", "/abort_request", "/pressure", "/v1/loads", "/version"),
    *("/server_info", "/get_server_info", "/model_info", "/get_model_info"),
    *("/", "/get_load", "/tokenizer_info", "/v1/chat/completions/render", "/v1/completions/render"),
    "/v1/responses/render",
    *("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"),
    *("/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score"),
}


async def test_every_route_is_public_keyed_or_admin(world: World) -> None:
    unclassified = {route.path for route in routes(world.state)} - PUBLIC_PATHS - STEERS - USES
    assert not unclassified, "say here who may use it"


async def test_control_routes_need_the_admin_key(world: World) -> None:
    table = routes(world.state)
    assert {route.path for route in table if route.is_admin} == STEERS
    world.engine.full = True  # requests that pass the key check get 503
    for route in table:
        if route.is_admin:
            reply = await world.client.request(route.method, route.path, headers=bearer(USER))
            assert (reply.status_code, reply.json()["error"]["type"]) == (403, "permission_error")
            assert (await world.client.request(route.method, route.path, headers=bearer(ADMIN))).status_code == 503


@pytest.mark.parametrize("access", [AccessConfig(api_key=(USER,)), AccessConfig(), AccessConfig(admin_api_key=ADMIN)])
async def test_without_an_admin_key_every_key_may_control(world: World, access: AccessConfig) -> None:
    world.engine.full = True
    for path in STEERS:
        for key in (USER, ADMIN):
            reply = await world.client.post(path, headers=bearer(key))
            may = key == ADMIN if access.admin_api_key else key in access.api_key or not access.api_key
            assert reply.status_code == (503 if may else 401)


@pytest.mark.parametrize("access", [AccessConfig()])
async def test_without_keys_any_key_is_accepted(world: World) -> None:
    for headers in ({}, bearer("none")):
        assert (await world.client.get("/v1/models", headers=headers)).status_code == 200


async def test_the_admin_may_request_a_higher_priority(world: World) -> None:
    for key, granted in ((USER, 0), (ADMIN, 70)):
        await world.client.post("/v1/completions", json={"prompt": "x", "priority": 70}, headers=bearer(key))
        assert world.engine.requests[-1].priority == granted


async def test_one_key_cannot_use_all_slots(engine: ScriptedEngine, config: ServerConfig, access: AccessConfig) -> None:
    engine.held = True
    state = build_state(engine, config, access=access_from(access, LimitsConfig(max_requests_per_key=1)))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

        def ask(key: str) -> asyncio.Task[httpx.Response]:
            return asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}, headers=bearer(key)))

        waiting = [ask(key) for key in (USER, OTHER, ADMIN, ADMIN)]
        while len(engine.requests) < 4:
            await asyncio.sleep(0)
        refused = await ask(USER)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await client.get("/v1/models", headers=bearer(USER))).status_code == 200
        await client.post("/abort_request", json={"abort_all": True}, headers=bearer(ADMIN))
        await asyncio.gather(*waiting)
        engine.held = False
        assert (await ask(USER)).status_code == 200
    state.prompts.close()


def test_owner_names_are_stable_and_hide_the_key() -> None:
    keys = Keys([USER, OTHER], ADMIN)
    owners = []
    for key in (USER, USER, OTHER, ADMIN):
        caller = keys.caller([(b"x-api-key", key.encode())])
        assert caller is not None
        owners.append(caller.owner)
    again = Keys([USER]).caller([(b"x-api-key", USER.encode())])
    assert again is not None
    assert owners[0] == owners[1] == again.owner
    assert len(set(owners)) == 3
    assert not any(key in repr((owners, vars(keys))) for key in (USER, OTHER, ADMIN))


def test_control_routes_accept_only_the_right_keys() -> None:
    shown = {name: [(b"x-api-key", name.encode())] for name in (USER, ADMIN)}
    anybody = Keys().caller([])
    assert anybody is not None
    assert anybody.may_control
    only_user: Any = Keys([USER])
    assert only_user.caller([]) is None
    assert only_user.caller(shown[USER]).may_control
    both: Any = Keys([USER], ADMIN)
    assert not both.caller(shown[USER]).may_control
    assert both.caller(shown[ADMIN]).may_control
    assert both.caller([*shown[ADMIN], *shown[USER]]).may_control, "one of its keys is the admin's"
    only_admin: Any = Keys([], ADMIN)
    assert not only_admin.caller([]).may_control
    assert not only_admin.caller(shown[USER]).may_control
    assert only_admin.caller(shown[ADMIN]).may_control
