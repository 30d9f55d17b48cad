"""Flush, pause and continue over HTTP, with a scripted scheduler."""

from __future__ import annotations

import pytest

from ebbtide.messages import ControlReq, Reply, ToEngine

from ..conftest import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def asked(world: World) -> list[ControlReq]:
    """Record calls to the scheduler. It accepts all but a flush with a timeout below a second."""
    asked: list[ControlReq] = []
    plain_send = world.engine.send

    def send(message: ToEngine) -> bool:
        if not isinstance(message, ControlReq):
            return plain_send(message)
        asked.append(message)
        busy = message.action == "flush" and message.timeout_s < 1
        reply = Reply(message.call, 400, "busy", "The cache is in use.") if busy else Reply(message.call)
        world.state.control.resolve(reply)
        return True

    world.engine.send = send  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_flush_is_text_when_done_and_an_error_when_refused(
    world: World, asked: list[ControlReq], method: str
) -> None:
    done = await world.client.request(method, "/flush_cache?timeout=2.5")
    assert (done.status_code, done.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    refused = await world.client.request(method, "/flush_cache")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "busy")
    assert [(message.action, message.timeout_s) for message in asked] == [("flush", 2.5), ("flush", 0.0)]


@pytest.mark.parametrize("timeout", ["-1", "x", "nan", "inf", "", "1e999"])
async def test_a_flush_timeout_must_be_a_number_of_seconds(world: World, asked: list[ControlReq], timeout: str) -> None:
    reply = await world.client.post(f"/flush_cache?timeout={timeout}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "timeout")
    assert asked == []


async def test_a_paused_server_is_alive_but_not_ready(world: World, asked: list[ControlReq]) -> None:
    for _ in range(2):
        paused = await world.client.post("/pause_generation")
        assert (paused.status_code, paused.json()["status"]) == (200, "ok")
    for reply in (await world.client.get("/ready"), await world.complete(), await world.chat()):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "paused")
        assert "retry-after" in reply.headers
    assert (await world.client.get("/health")).status_code == 200
    for _ in range(2):
        assert (await world.client.post("/continue_generation", json={})).json()["status"] == "ok"
    assert (await world.client.get("/ready")).status_code == 200
    assert (await world.complete()).status_code == 200
    assert [message.action for message in asked] == ["pause"] * 2 + ["continue"] * 2


async def test_pausing_can_abort_open_requests(world: World, asked: list[ControlReq]) -> None:
    import asyncio

    world.engine.held = True
    task = asyncio.create_task(world.complete())
    while not world.engine.requests:
        await asyncio.sleep(0)
    assert (await world.client.post("/pause_generation", json={"mode": "in_place"})).status_code == 200
    assert not task.done()
    assert (await world.client.post("/pause_generation", json={"mode": "abort"})).status_code == 200
    assert (await task).json()["error"]["code"] == "aborted"


@pytest.mark.parametrize("body", [b'{"mode": "retract"}', b'{"mode": 1}', b"[]", b"{"])
async def test_an_unknown_pause_mode_is_refused_and_does_not_pause(
    world: World, asked: list[ControlReq], body: bytes
) -> None:
    assert (await world.client.post("/pause_generation", content=body)).status_code == 400
    assert asked == []
    assert (await world.client.get("/ready")).status_code == 200


async def test_a_full_scheduler_queue_is_503_and_does_not_pause(world: World) -> None:
    world.engine.full = True
    for path in ("/flush_cache", "/pause_generation", "/continue_generation"):
        reply = await world.client.post(path)
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "overloaded_error")
    assert (await world.client.get("/ready")).status_code == 200


async def test_new_children_are_not_paused(world: World, asked: list[ControlReq]) -> None:
    await world.client.post("/pause_generation")
    world.state.liveness.mark_started()
    assert (await world.client.get("/ready")).status_code == 200


async def test_the_shorter_request_timeout_applies(world: World) -> None:
    await world.complete(timeout=5)
    assert world.engine.requests[0].queue_timeout_s is None
    assert 0 < world.engine.requests[0].timeout_s <= 5
    await world.complete()
    assert world.engine.requests[1].timeout_s is None


@pytest.mark.parametrize("timeout", [0, -1, "5", True, 1e400])
async def test_an_invalid_request_timeout_is_refused(world: World, timeout: object) -> None:
    content = b'{"prompt": "x", "timeout": 1e400}' if timeout == 1e400 else None
    reply = await (
        world.complete(timeout=timeout) if content is None else world.client.post("/v1/completions", content=content)
    )
    assert reply.status_code == 400
