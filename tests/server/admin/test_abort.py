"""Requests aborted by id, and the errors that their clients receive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.errors import Rejected
from ebbtide.server.app import create_app
from ebbtide.server.http.access import access_from

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio

USER, OTHER, ADMIN = "user-key-1", "user-key-2", "admin-key"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(held=True)


async def started(world: World, count: int = 1, **sent: Any) -> list[asyncio.Task[httpx.Response]]:
    """Open that many requests, which the engine holds without answering."""
    want = len(world.engine.requests) + count
    tasks = [asyncio.create_task(world.client.post("/v1/completions", **sent)) for _ in range(count)]
    while len(world.engine.requests) < want:
        await asyncio.sleep(0)
    return tasks


async def abort(world: World, **body: Any) -> int:
    reply = await world.client.post("/abort_request", json=body)
    assert reply.status_code == 200
    return int(reply.json()["num_aborted"])


@pytest.mark.parametrize("name", ["mine", "cmpl-mine", "chatcmpl-mine"])
async def test_an_abort_ends_exactly_the_requests_with_the_id(world: World, name: str) -> None:
    sent = {"json": {"prompt": "x", "n": 2}, "headers": {"x-request-id": "mine"}}
    tasks = await started(world, 2, **sent)
    [other] = await started(world, json={"prompt": "x"})
    assert await abort(world, rid=name) == 2
    for task in tasks:
        reply = await task
        assert reply.status_code == 499
        assert reply.headers["x-should-retry"] == "false"
        assert reply.json()["error"]["code"] == "aborted"
        assert reply.json()["error"]["type"] == "aborted_error"
    assert [message.reason for message in world.engine.aborts] == ["aborted"] * 4
    assert not other.done()
    assert await abort(world, rid=name) == 0
    assert await abort(world, abort_all=True) == 1
    assert (await other).status_code == 499
    assert world.state.manager.num_open == 0


@pytest.mark.parametrize(
    ("body", "headers", "answered"),
    [
        ({"rid": "a"}, {}, "a"),
        ({"request_id": "b"}, {}, "b"),
        ({"rid": "a", "request_id": "b"}, {}, "a"),
        ({"rid": "a", "request_id": "b"}, {"x-request-id": "c"}, "c"),
        ({"rid": "not good", "request_id": "b"}, {"x-request-id": "nor this"}, "b"),
    ],
)
async def test_every_id_identifies_a_request_and_one_is_on_its_response(
    world: World, body: Any, headers: dict[str, str], answered: str
) -> None:
    names = [name for name in (*body.values(), *headers.values()) if " " not in name]
    for name in names:
        [task] = await started(world, json={"prompt": "x", **body}, headers=headers)
        assert await abort(world, rid=["none", name], request_id="none either") == 1
        assert (await task).headers["x-request-id"] == answered
    assert await abort(world, rid="not good") == 0


async def test_a_generated_id_identifies_its_request_too(world: World) -> None:
    [task] = await started(world, json={"prompt": "x", "stream": True})
    rid = world.engine.requests[0].rids[0]
    world.engine.emit(rid, "H", 1)
    world.engine.held = False
    finished = await world.client.post("/v1/completions", json={"prompt": "y"})
    assert await abort(world, rid=finished.json()["id"]) == 0, "it has ended"
    assert await abort(world, rid=rid) == 1, "the log and /pressure name requests like this"
    await task


async def test_a_started_stream_ends_with_one_error_event(world: World) -> None:
    [task] = await started(world, json={"prompt": "x", "stream": True, "rid": "mine"})
    world.engine.emit(world.engine.requests[0].rids[0], "H", 1)
    await abort(world, rid="mine")
    reply = await task
    assert reply.status_code == 200
    events = [line for line in reply.text.split("\n\n") if line]
    assert json.loads(events[0][6:])["choices"][0]["text"] == "H"
    assert json.loads(events[1][6:])["error"]["code"] == "aborted"
    assert len(events) == 2, "no finish reason and no [DONE]"


@pytest.mark.parametrize("body", [{"rid": "mine"}, {"abort_all": True}])
async def test_an_aborted_request_in_tokenization_never_reaches_the_engine(
    world: World, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def text(prompt: str, *, add_special_tokens: bool, param: str) -> list[int]:
        reading.set()
        await go_on.wait()
        return [1, 2, 3]

    monkeypatch.setattr(world.state.prompts, "text", text)
    task = asyncio.create_task(world.client.post("/v1/completions", json={"prompt": "x", "rid": "mine"}))
    await reading.wait()
    assert await abort(world, rid="other") == 0
    assert await abort(world, **body) == 1
    assert await abort(world, **body) == 0
    go_on.set()
    assert (await task).status_code == 499
    assert world.engine.requests == []
    assert world.state.manager.num_open == 0


async def test_an_abort_after_the_outcome_changes_nothing(world: World) -> None:
    [task] = await started(world, json={"prompt": "x", "rid": "mine"})
    world.engine.emit(world.engine.requests[0].rids[0], "H", 1, finish="stop")
    assert world.state.manager.abort("mine", Rejected("it was aborted"), owner=None) == 0
    assert (await task).status_code == 200


@pytest.mark.parametrize(
    "body", [{}, {"abort_all": False}, {"rid": []}, {"rid": 7}, {"rid": [7]}, {"abort_all": "yes"}]
)
async def test_an_abort_without_ids_is_refused(world: World, body: Any) -> None:
    assert (await world.client.post("/abort_request", json=body)).status_code == 400


async def test_a_key_can_abort_only_its_own_requests(engine: ScriptedEngine, config: ServerConfig) -> None:
    access = access_from(AccessConfig(api_key=(USER, OTHER), admin_api_key=ADMIN))
    state = build_state(engine, config, access=access)
    transport = httpx.ASGITransport(create_app(state), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        world = World(engine, state, client)
        tasks = []
        for key in (USER, OTHER, ADMIN):
            tasks += await started(world, json={"prompt": "x", "rid": "same"}, headers={"x-api-key": key})
        client.headers["x-api-key"] = USER
        assert await abort(world, rid="same") == 1
        assert await abort(world, rid=engine.requests[1].rids[0]) == 0
        refused = await client.post("/abort_request", json={"abort_all": True})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        client.headers["x-api-key"] = ADMIN
        assert await abort(world, rid="same") == 2
        assert [(await task).status_code for task in tasks] == [499] * 3
        tasks = await started(world, json={"prompt": "x"}, headers={"x-api-key": USER})
        assert await abort(world, abort_all=True) == 1
        assert (await tasks[0]).status_code == 499
    state.prompts.close()
