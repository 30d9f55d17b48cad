"""CORS, cross-origin requests and the root path."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.errors import StartupError
from ebbtide.messages import Reply
from ebbtide.server.app import create_app
from ebbtide.server.http.access import access_from
from ebbtide.server.http.cors import check_origins_and_root_path

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio

PAGE = "https://chat.example"
ASKS = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.fixture
def access() -> AccessConfig:
    return AccessConfig(api_key=("right",), allowed_origins=(PAGE, "http://localhost:3000"))


@pytest.fixture
async def world(engine: ScriptedEngine, config: ServerConfig, access: AccessConfig) -> AsyncIterator[World]:
    state = build_state(engine, config, access=access_from(access))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    headers = {"authorization": "Bearer right", "origin": PAGE}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        yield World(engine, state, client)
    state.prompts.close()


async def test_a_preflight_needs_no_key(world: World) -> None:
    del world.client.headers["authorization"]
    reply = await world.client.options("/v1/chat/completions", headers=ASKS)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert reply.headers["access-control-allow-headers"] == "authorization"
    assert "x-request-id" in reply.headers


async def test_answers_and_errors_can_be_read(world: World) -> None:
    def fail(message: object) -> bool:
        raise RuntimeError("broken")

    assert (await world.complete()).headers["access-control-allow-origin"] == PAGE
    refused = await world.client.get("/v1/models", headers={"authorization": "Bearer wrong"})
    missing = await world.client.get("/nothing")
    large = await world.client.post("/v1/completions", content=b" " * 300_000)
    world.engine.send = fail  # type: ignore[method-assign]
    bug = await world.complete()
    for reply, status in ((refused, 401), (missing, 404), (large, 413), (bug, 500)):
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in reply.headers["access-control-expose-headers"]
        assert "error" in reply.json()


async def test_other_origins_get_no_cors_headers(world: World) -> None:
    other = {"origin": "https://evil.example"}
    assert (await world.client.options("/v1/models", headers=ASKS | other)).status_code == 400
    for reply in (await world.client.get("/v1/models", headers=other), await world.client.options("/", headers=other)):
        assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("access", [AccessConfig()])
async def test_by_default_no_origin_is_allowed(world: World) -> None:
    reply = await world.client.options("/v1/chat/completions", headers=ASKS)
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers


CHANGES = [("POST", path) for path in ("/pause_generation", "/continue_generation", "/flush_cache", "/abort_request")]
CHANGES += [
    ("GET", "/llm/flush_cache"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/sessions"),
    ("DELETE", "/v1/sessions/a"),
    ("GET", "/flush_cache"),
]
FOREIGN = [
    *({"origin": origin} for origin in ("https://evil.example", "null", "http://test:81", "http://test.evil.example")),
    *(
        {"sec-fetch-site": site} for site in ("cross-site", "same-site")
    ),  # for example an image request, which has no Origin
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize(
    "access", [AccessConfig(root_path="/llm"), AccessConfig(allowed_origins=(PAGE,), root_path="/llm")]
)
async def test_a_cross_origin_page_cannot_change_state(world: World) -> None:
    del world.client.headers["origin"]
    for method, path in CHANGES:
        for headers in FOREIGN:
            reply = await world.client.request(method, path, headers={"content-type": "text/plain"} | headers)
            assert reply.status_code == 403, (method, path, headers)
            assert reply.json()["error"]["code"] == "origin_not_allowed"
    assert not world.engine.heard.is_set()
    for headers in FOREIGN:
        assert (await world.client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("access", [AccessConfig(allowed_origins=(PAGE,)), AccessConfig(allowed_origins=("*",))])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": PAGE, "sec-fetch-site": "cross-site"},
        {"origin": "http://test", "sec-fetch-site": "same-origin"},
        {"origin": "https://TEST"},  # behind a proxy that speaks HTTPS
        {"origin": "https://llm.example", "sec-fetch-site": "same-origin"},  # behind a proxy that changes the host
        {"sec-fetch-site": "none"},  # typed by the user
        {},
    ],
)
async def test_same_origin_allowed_origins_and_non_browsers_may_request(world: World, headers: dict[str, str]) -> None:
    del world.client.headers["origin"]
    world.engine.on_call = lambda message: Reply(message.call)
    assert (await world.client.post("/v1/completions", json={"prompt": "hi"}, headers=headers)).status_code == 200
    assert (await world.client.get("/flush_cache", headers=headers)).status_code == 200


@pytest.mark.parametrize("access", [AccessConfig(disable_docs=True)])
async def test_the_description_can_be_switched_off(world: World) -> None:
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert (await world.client.get(path)).status_code == 404
    assert (await world.client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize("access", [AccessConfig(api_key=("right",), root_path="/llm")])
async def test_routes_work_below_the_root_path(world: World) -> None:
    assert (await world.client.get("/openapi.json")).json()["servers"] == [{"url": "/llm"}]
    del world.client.headers["authorization"]
    for prefix in ("", "/llm"):  # with and without a proxy that strips its path prefix
        assert (await world.client.get(f"{prefix}/health")).status_code == 200
        assert (await world.client.get(f"{prefix}/v1/models")).status_code == 401
        right = {"authorization": "Bearer right"}
        assert (await world.client.get(f"{prefix}/v1/models", headers=right)).status_code == 200


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "https://a.example/b", "", "https://*/x"])
def test_a_malformed_origin_is_refused_at_start(origin: str) -> None:
    with pytest.raises(StartupError, match="--allowed-origins"):
        check_origins_and_root_path(AccessConfig(allowed_origins=(origin,)))


@pytest.mark.parametrize("path", ["llm", "/llm/", "/", "/a//b", "/a b"])
def test_a_malformed_root_path_is_refused_at_start(path: str) -> None:
    with pytest.raises(StartupError, match="--root-path"):
        check_origins_and_root_path(AccessConfig(root_path=path))


def test_common_origins_and_root_paths_are_accepted() -> None:
    origins = ("*", "https://a.example", "http://localhost:3000", "chrome-extension://abc")
    check_origins_and_root_path(AccessConfig(allowed_origins=origins, root_path="/a/b-c"))
