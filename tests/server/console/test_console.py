"""The console's page, its files, and the routes that feed it."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.messages import (
    GenerateReq,
    Inspection,
    InspectReq,
    PageMap,
    PageMapReq,
    PageRun,
    PressureEvent,
    PressureVictim,
    Reply,
    RequestInfo,
    Resumption,
    SessionInfo,
    Stats,
)
from ebbtide.server.app import create_app
from ebbtide.server.console.feed import MAX_VIEWERS, ConsoleFeed
from ebbtide.server.console.files import FOLDER, VENDORED, console_files
from ebbtide.server.http.access import access_from

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[3]
USER, OTHER, ADMIN = "user-key-1", "user-key-2", "admin-key"
HTML = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
KEYED = AccessConfig(api_key=(USER, OTHER), admin_api_key=ADMIN)
GAUGES = {"num_running_reqs": 1.0, "num_queue_reqs": 1.0, "max_total_num_tokens": 256.0}
BOOKS = {"available": 160, "evictable": 32, "protected": 16, "session_held": 0, "uncached": 48, "quarantined": 0}
PAGES = [PageRun(2, "available", ""), PageRun(1, "uncached", "a-rid")]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.fixture
def access() -> AccessConfig:
    return AccessConfig()


@pytest.fixture
async def world(engine: ScriptedEngine, config: ServerConfig, access: AccessConfig) -> AsyncIterator[World]:
    engine.on_call = Answers(engine)
    state = build_state(engine, config, access=access_from(access))
    books = {f"kv_{name}_tokens{{pool=full}}": float(tokens) for name, tokens in BOOKS.items()}
    state.metrics.apply_stats(Stats(GAUGES | books, {"generation_tokens_total": 7.0}, {}))
    app = create_app(state)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        world = World(engine, state, client)
        world.app = app  # type: ignore[attr-defined]
        yield world
    state.prompts.close()
    state.structured.close()


class Answers:
    """Answers what the console asks the scheduler: the open requests, a session of each owner, a map of three pages."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.messages: list[Any] = []

    def __call__(self, message: Any) -> Reply:
        self.messages.append(message)
        match message:
            case InspectReq():
                return Reply(message.call, inspection=self._inspection())
            case PageMapReq(pool="full"):
                return Reply(message.call, page_map=PageMap(3, PAGES))
            case _:
                return Reply(message.call, 404, "pool_not_found", "There is no such pool.")

    def _inspection(self) -> Inspection:
        requests: list[GenerateReq] = self.engine.requests
        running = [RequestInfo(req.rids[0], "running", 2, 1, 9, 1, 0.5, 0, False) for req in requests]
        owners = ["", *dict.fromkeys(caller_of(key) for key in (USER, OTHER))]
        sessions = [
            SessionInfo(f"s{index}", True, "warm", 1, 5, 16, 0.0, 9.0, owner) for index, owner in enumerate(owners)
        ]
        return Inspection(running, [], sessions, len(sessions))


def caller_of(key: str) -> str:
    """The owner that the server derives from a key."""
    caller = access_from(KEYED).keys.caller([(b"x-api-key", key.encode())])
    assert caller is not None
    return caller.owner


class Viewer:
    """One open stream of the console."""

    def __init__(self, world: World, key: str = "", method: str = "GET") -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._text = ""
        self._more = asyncio.Event()
        self._left = asyncio.Event()
        headers = [(name.encode(), value.encode()) for name, value in bearer(key).items()]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": "/console/events",
            "raw_path": b"/console/events",
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        self.task = asyncio.create_task(world.app(scope, self._receive, self._send))  # type: ignore[attr-defined]

    async def event(self, name: str) -> dict[str, Any]:
        """The next event of this name. Events before it are dropped."""
        while True:
            *blocks, self._text = self._text.split("\n\n")
            for number, block in enumerate(blocks):
                first, second = block.split("\n")
                if first == f"event: {name}":
                    self._text = "\n\n".join([*blocks[number + 1 :], self._text])
                    data: dict[str, Any] = json.loads(second.removeprefix("data: "))
                    return data
            self._more.clear()
            assert not self.task.done(), "the stream has ended"
            async with asyncio.timeout(10):
                await self._more.wait()

    async def requests(self) -> list[dict[str, Any]]:
        """The requests of the first snapshot that has some."""
        while True:
            snapshot = await self.event("snapshot")
            if snapshot["requests"]:
                return list(snapshot["requests"])

    async def leave(self) -> None:
        self._left.set()
        async with asyncio.timeout(10):
            await self.task

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        self._text += message.get("body", b"").decode()
        self._more.set()


async def test_a_browser_gets_the_page_at_the_root(world: World) -> None:
    for accept in (HTML["accept"], "text/html", "TEXT/HTML;level=1", "application/json, text/html;q=0.1"):
        reply = await world.client.get("/", headers={"accept": accept})
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<title>ebbtide console</title>" in reply.text
        assert reply.headers["vary"] == "Accept"
        head = await world.client.head("/", headers={"accept": accept})
        assert (head.status_code, head.content) == (200, b"")


async def test_an_api_client_gets_json_at_the_root(world: World) -> None:
    for accept in ("*/*", "application/json", "", "text/*", "text/html;q=0", "text/html; q=0.0", "text/htm"):
        reply = await world.client.get("/", headers={"accept": accept})
        assert reply.json() == {"name": "ebbtide", "version": reply.json()["version"], "model": "org/sim"}
        assert (await world.client.post("/", headers=HTML)).status_code == 405


def addresses(page: str) -> set[str]:
    return set(re.findall(r'(?:src|href)="([^"#]+)"', page))


@pytest.mark.parametrize("access", [AccessConfig(), AccessConfig(root_path="/llm"), AccessConfig(api_key=(USER,))])
async def test_the_page_and_all_that_it_loads_come_from_the_daemon_without_a_key(
    world: World, access: AccessConfig
) -> None:
    root = access.root_path
    for path in {"/", f"{root}/", root or "/"}:
        reply = await world.client.get(path, headers=HTML)
        assert reply.status_code == 200, path
        loaded = {urljoin(path, address) for address in addresses(reply.text)} - {
            urljoin(path, "docs"),
            urljoin(path, "metrics"),
        }
        assert {address.removeprefix(root) for address in loaded} < console_files().keys()
        for address in loaded:
            assert (await world.client.get(address)).status_code == 200, address
    for path in console_files():
        reply = await world.client.get(path)
        assert reply.status_code == 200, path
        for name in re.findall(r'from "\./([^"]+)"', reply.text):
            assert f"/console/{name}" in console_files()
    for path in ("/console", "/console/", "/console/../auth.py", "/console/%2e%2e/routes.py", "/console/index.html"):
        assert (await world.client.get(path, headers=bearer(USER))).status_code == 404, path
    assert (await world.client.post("/console/main.js", headers=bearer(USER))).status_code == 405


async def test_the_policy_forbids_inline_scripts_other_origins_and_html_from_scripts(world: World) -> None:
    page = await world.client.get("/", headers=HTML)
    for reply in [
        page,
        *[await world.client.get(f"/console/{name}") for name in ("main.js", "console.css", "icon.svg")],
    ]:
        policy = dict(rule.strip().split(" ", 1) for rule in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]* src=)|<style| on\w+=| style=", page.text)
    for path in FOLDER.glob("*"):
        if path.is_file():
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!www\.w3\.org)", path.read_text()
            )


async def test_the_page_has_at_most_60_kb_besides_the_chart_library(world: World) -> None:
    own = [path for path in [FOLDER / "index.html", *console_files().values()] if not path.is_relative_to(VENDORED)]
    assert sum(len(gzip.compress(path.read_bytes())) for path in own) < 60_000


async def test_the_chart_library_is_the_pinned_one_and_has_its_licence(world: World) -> None:
    pinned = runpy.run_path(str(ROOT / "tools" / "fetch_uplot.py"))["SHA256"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDORED.iterdir()} == pinned
    assert "MIT License" in (await world.client.get("/console/vendor/uPlot.LICENSE.txt")).text


@pytest.mark.parametrize("access", [AccessConfig(disable_console=True)])
async def test_the_console_can_be_switched_off(world: World) -> None:
    assert (await world.client.get("/", headers=HTML)).json()["name"] == "ebbtide"
    for path in (*console_files(), "/console/events", "/console/pages"):
        assert (await world.client.get(path)).status_code == 404


async def test_a_viewer_sees_snapshots_and_leaves_nothing_behind(world: World) -> None:
    names = {task.get_name() for task in asyncio.all_tasks()}
    viewer = Viewer(world)
    hello = await viewer.event("hello")
    assert (hello["model"], hello["may_control"], hello["pools"]) == (
        "org/sim",
        True,
        {"full": {"num_pages": 16, "page_size": 16}},
    )
    assert (viewer.status, viewer.headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    first, second = await viewer.event("snapshot"), await viewer.event("snapshot")
    assert second["number"] == first["number"] + 1
    assert second["status"] == "ready"
    assert second["load"]["pools"]["full"] == {**BOOKS, "total": 256}
    assert second["totals"]["output_tokens"] == 7
    assert [session["id"] for session in second["sessions"]] == ["s0", "s1", "s2"]
    assert "owner" not in second["sessions"][0]
    await viewer.leave()
    await asyncio.sleep(0)
    assert {task.get_name() for task in asyncio.all_tasks()} == names
    assert world.state.metrics.windows is None


async def test_without_a_viewer_the_scheduler_is_not_asked_and_no_latencies_are_kept(world: World) -> None:
    await world.chat()
    assert world.state.metrics.windows is None
    assert world.engine.on_call.messages == []  # type: ignore[union-attr]


async def test_an_event_and_the_return_of_its_victims_are_shown(world: World) -> None:
    log = world.state.pressure
    log.add(PressureEvent(1, "memory", [PressureVictim("old", 5, 20, 32, 25, 1)], 0, 32, 0.7, 0.9, 4, 2))
    viewer = Viewer(world)
    [event] = (await viewer.event("pressure"))["events"]
    assert (event["number"], event["victims"][0]["outcome"]) == (1, None)
    log.add(PressureEvent(2, "memory", [PressureVictim("new", 5, 20, 32, 25, 1)], 0, 32, 0.7, 0.9, 4, 2))
    [event] = (await viewer.event("pressure"))["events"]
    assert (event["number"], event["victims"][0]["rid"]) == (2, "new")
    log.resumed([Resumption("old", 1.5), Resumption("unknown", 1.0)])
    changed = await viewer.event("pressure")
    [event] = changed["events"]
    assert (event["victims"][0]["outcome"], event["victims"][0]["waited_s"]) == ("resumed", 1.5)
    assert changed["num_total"] == 2
    log.on_scheduler_death()
    [event] = (await viewer.event("pressure"))["events"]
    assert (event["number"], event["victims"][0]["outcome"]) == (2, "engine_dead")
    await viewer.leave()


async def test_latencies_of_the_last_second_and_minute_are_shown(world: World) -> None:
    viewer = Viewer(world)
    await viewer.event("snapshot")
    for seconds in (0.1, 0.1, 0.4):
        world.state.metrics.observe_first_token(seconds)
    world.state.metrics.observe_token_gap(0.02, 40)
    latency = None
    while latency is None:
        latency = (await viewer.event("snapshot"))["latency"]
    for shown in latency.values():
        assert (shown["first_token"]["num"], shown["token_gap"]["num"]) == (3, 40)
        assert shown["first_token"]["p50_s"] == pytest.approx(0.1, rel=0.03)
        assert shown["first_token"]["p95_s"] == pytest.approx(0.4, rel=0.03)
        assert shown["token_gap"]["p50_s"] == pytest.approx(0.02, rel=0.03)
    await viewer.leave()


@pytest.mark.parametrize("access", [KEYED])
async def test_each_key_sees_its_own_requests_and_sessions_and_the_admin_sees_all(world: World) -> None:
    world.engine.held = True
    body = {"prompt": "hi"}
    asked = [
        asyncio.create_task(world.client.post("/v1/completions", json=body, headers=bearer(key)))
        for key in (USER, OTHER)
    ]
    while len(world.engine.requests) < 2:
        await asyncio.sleep(0)
    rids = {caller_of(key): request.rids[0] for key, request in zip((USER, OTHER), world.engine.requests, strict=True)}
    user, admin = Viewer(world, USER), Viewer(world, ADMIN)
    mine, every = await user.requests(), await admin.requests()
    assert [(req["rid"], req["abortable"]) for req in mine] == [(rids[caller_of(USER)], False)]
    assert {(req["rid"], req["abortable"]) for req in every} == {(rid, True) for rid in rids.values()}
    assert [session["id"] for session in (await user.event("snapshot"))["sessions"]] == ["s1"]
    assert [session["id"] for session in (await admin.event("snapshot"))["sessions"]] == ["s0", "s1", "s2"]
    await user.leave()
    await admin.leave()
    world.engine.release()
    await asyncio.gather(*asked)


@pytest.mark.parametrize("access", [KEYED])
async def test_the_data_needs_a_key_and_the_page_map_the_admin_key(world: World) -> None:
    for path in ("/console/events", "/console/pages"):
        for headers in ({}, bearer("wrong"), HTML):
            assert (await world.client.get(path, headers=headers)).status_code == 401
    assert (await world.client.get("/console/pages", headers=bearer(USER))).status_code == 403
    shown = (await world.client.get("/console/pages", headers=bearer(ADMIN))).json()
    assert (shown["total_pages"], shown["num_pages"]) == (3, 3)
    assert shown["runs"] == [[2, "available", ""], [1, "uncached", "a-rid"]]


@pytest.mark.parametrize("access", [AccessConfig(admin_api_key=ADMIN)])
async def test_without_the_admin_key_a_viewer_may_not_control(world: World) -> None:
    viewer = Viewer(world)
    assert (await viewer.event("hello"))["may_control"] is False
    await viewer.leave()
    assert (await world.client.get("/console/pages")).status_code == 401


async def test_bad_queries_of_the_page_map_are_refused_by_name(world: World) -> None:
    for first in ("-1", "x", "1.5", "9" * 13, "²", ""):
        reply = await world.client.get("/console/pages", params={"first": first})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "first")
    assert (await world.client.get("/console/pages?pool=swa")).status_code == 404


async def test_a_head_request_ends(world: World) -> None:
    viewer = Viewer(world, method="HEAD")
    async with asyncio.timeout(10):
        await viewer.task
    assert viewer.status == 200


async def test_the_number_of_viewers_is_limited(world: World) -> None:
    viewers = [Viewer(world) for _ in range(MAX_VIEWERS)]
    for viewer in viewers:
        await viewer.event("hello")
    late = Viewer(world)
    async with asyncio.timeout(10):
        await late.task
    assert late.status == 429
    await viewers[0].leave()
    viewers[0] = Viewer(world)
    assert (await viewers[0].event("hello"))["model"] == "org/sim"
    for viewer in viewers:
        await viewer.leave()


async def test_the_streams_end_when_the_server_stops_and_no_request_is_open(world: World) -> None:
    world.engine.held = True
    asked = asyncio.create_task(world.complete())
    viewer = Viewer(world)
    await viewer.requests()
    world.state.liveness.start_draining()
    while (await viewer.event("snapshot"))["status"] != "draining":
        pass
    world.engine.release()
    await asked
    await viewer.event("end")
    async with asyncio.timeout(10):
        await viewer.task


async def test_an_engine_that_does_not_answer_is_asked_once_and_gauges_are_still_shown(world: World) -> None:
    asked: list[Any] = []
    world.engine.on_call = lambda message: asked.append(message) or Reply("another call")  # type: ignore[func-returns-value]
    feed = ConsoleFeed(world.state, interval_s=0)
    with feed.viewer():
        snapshot = await feed.next(5)
    assert snapshot.inspection is None
    assert snapshot.common["load"]["max_total_num_tokens"] == 256
    assert len(asked) == 1
