"""The page /docs and its files: all of them come from the daemon itself."""

from __future__ import annotations

import hashlib
import re
import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.server.app import create_app
from ebbtide.server.http.access import access_from
from ebbtide.server.http.docs_page import FOLDER

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
ADDRESS = re.compile(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""")
TYPES = {
    "/docs": "text/html; charset=utf-8",
    "/docs/start.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "/docs/swagger-ui.css": "text/css; charset=utf-8",
    "/openapi.json": "application/json",
}


@pytest.fixture
def access() -> AccessConfig:
    return AccessConfig()


@pytest.fixture
async def world(engine: ScriptedEngine, config: ServerConfig, access: AccessConfig) -> AsyncIterator[World]:
    state = build_state(engine, config, access=access_from(access))
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield World(engine, state, client)
    state.prompts.close()


async def addresses(world: World, page: str) -> set[str]:
    """The addresses that the page and its script request."""
    html = (await world.client.get(page)).text
    script = (await world.client.get(f"{page}/start.js")).text
    found = ADDRESS.findall(html) + ADDRESS.findall(script)
    return {urljoin(page, address) for address in found if not address.startswith("data:")}


@pytest.mark.parametrize(("access", "prefix"), [(AccessConfig(), ""), (AccessConfig(root_path="/llm"), "/llm")])
async def test_the_page_requests_files_of_this_daemon_only(world: World, prefix: str) -> None:
    for page in {"/docs", f"{prefix}/docs"}:  # with and without a proxy that strips its path prefix
        found = await addresses(world, page)
        assert found == {page.removesuffix("/docs") + path for path in TYPES if path != "/docs"}
        for address in found:
            reply = await world.client.get(address)
            assert (reply.status_code, reply.headers["content-type"]) == (
                200,
                TYPES[address.removeprefix(page.removesuffix("/docs"))],
            )


async def test_nothing_on_the_page_names_another_origin(world: World) -> None:
    for path in ("/docs", "/docs/start.js"):
        assert "//" not in (await world.client.get(path)).text.replace("// the default", "")
    css = (await world.client.get("/docs/swagger-ui.css")).text
    assert {address.strip("\"'")[:5] for address in re.findall(r"(?:url\(|@import\s)\s*(.{6})", css)} == {"data:"}


async def test_the_policy_allows_own_scripts_and_styles_only(world: World) -> None:
    for path in TYPES.keys() - {"/openapi.json"}:
        reply = await world.client.get(path)
        policy = dict(rule.strip().split(" ", 1) for rule in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]* src=)|<style| on\w+=| style=", (await world.client.get("/docs")).text)


async def test_other_paths_below_the_page_are_unknown(world: World) -> None:
    for path in ("/docs/", "/docs/__init__.py", "/docs/../auth.py", "/docs/%2e%2e/auth.py", "/docs/oauth2-redirect"):
        assert (await world.client.get(path)).status_code == 404, path
    assert (await world.client.post("/docs")).status_code == 405
    head = await world.client.head("/docs/swagger-ui.css")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("access", [AccessConfig(disable_docs=True)])
async def test_the_page_and_its_files_can_be_switched_off(world: World) -> None:
    for path in TYPES:
        assert (await world.client.get(path)).status_code == 404


async def test_the_redoc_page_does_not_exist(world: World) -> None:
    assert (await world.client.get("/redoc")).status_code == 404


async def test_the_files_are_the_pinned_ones_and_have_their_licences(world: World) -> None:
    pinned = runpy.run_path(str(ROOT / "tools" / "fetch_swagger_ui.py"))["SHA256"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir()} == pinned
    assert "Apache License" in (await world.client.get("/docs/LICENSE")).text
    assert "SmartBear" in (await world.client.get("/docs/NOTICE")).text
