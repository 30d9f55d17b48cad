"""The session routes: calls to the scheduler, and responses to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.messages import CloseSessionReq, ListSessionsReq, OpenSessionReq, Reply, SessionInfo
from ebbtide.server.app import create_app
from ebbtide.server.http.access import access_from

from ..conftest import ScriptedEngine, World, build_state

pytestmark = pytest.mark.anyio
INFO = SessionInfo(
    session_id="s",
    streaming=True,
    state="warm",
    num_turns=2,
    num_tokens=40,
    held_tokens=48,
    idle_s=1.23456,
    timeout_s=9,
    held_in_pools={"full": 48, "swa": 16},
)
SHOWN = {
    "id": "s",
    "object": "session",
    "state": "warm",
    "streaming": True,
    "num_turns": 2,
    "num_tokens": 40,
    "held_tokens": 48,
    "held_tokens_by_pool": {"full": 48, "swa": 16},
    "idle_s": 1.235,
    "timeout_s": 9.0,
}


@dataclass
class Asked:
    """The recorded calls to the scheduler, and its scripted replies."""

    say: Callable[[str], Reply] = lambda call: Reply(call, sessions=[INFO])
    messages: list[Any] = field(default_factory=list)

    def __call__(self, message: Any) -> Reply:
        self.messages.append(message)
        return self.say(message.call)


@pytest.fixture
def asked(engine: ScriptedEngine) -> Asked:
    engine.on_call = Asked()
    return engine.on_call


async def test_a_session_is_opened_with_its_fields_and_shown(world: World, asked: Asked) -> None:
    reply = await world.client.post("/v1/sessions", json={"session_id": "a-1._Z", "streaming": False, "timeout": 2.5})
    assert (reply.status_code, reply.json()) == (200, SHOWN)
    [message] = asked.messages
    assert message == OpenSessionReq(message.call, "a-1._Z", "", False, 2.5)


@pytest.mark.parametrize("body", [{"json": {}}, {"json": {"session_id": None, "streaming": None, "timeout": None}}, {}])
async def test_a_session_needs_no_fields_and_streams(world: World, asked: Asked, body: dict[str, Any]) -> None:
    for _ in range(2):
        assert (await world.client.post("/v1/sessions", **body)).status_code == 200
    first, second = asked.messages
    assert first.session_id != second.session_id
    assert (first.streaming, first.timeout_s) == (True, None)


async def test_sessions_are_listed_and_shown(world: World, asked: Asked) -> None:
    assert (await world.client.get("/v1/sessions")).json() == {"object": "list", "data": [SHOWN]}
    assert (await world.client.get("/v1/sessions/s")).json() == SHOWN
    assert [type(message) for message in asked.messages] == [ListSessionsReq] * 2
    assert [message.session_id for message in asked.messages] == ["", "s"]


async def test_a_session_is_closed(world: World, asked: Asked) -> None:
    reply = await world.client.delete("/v1/sessions/s")
    assert (reply.status_code, reply.json()) == (200, {"id": "s", "object": "session", "deleted": True})
    [message] = asked.messages
    assert message == CloseSessionReq(message.call, "s")


async def test_sessions_open_and_close_in_sglangs_form(world: World, asked: Asked) -> None:
    opened = await world.client.post("/open_session", json={"capacity_of_str_len": 1000, "session_id": "s"})
    assert (opened.status_code, opened.json()) == (200, "s")
    streaming = {"capacity_of_str_len": 1, "streaming": True, "timeout": 5}
    await world.client.post("/open_session", json=streaming)
    closed = await world.client.post("/close_session", json={"session_id": "s"})
    assert (closed.status_code, closed.content) == (200, b"")
    plain, second, close = asked.messages
    assert (plain.streaming, plain.timeout_s) == (False, None)
    assert (second.streaming, second.timeout_s) == (True, 5)
    assert close == CloseSessionReq(close.call, "s")


@pytest.mark.parametrize(
    ("status", "code", "kind", "should_retry"),
    [
        (400, "streaming_sessions_off", "invalid_request_error", None),
        (404, "session_not_found", "not_found_error", None),
        (409, "session_exists", "conflict_error", "false"),
        (410, "session_closed", "not_found_error", None),
        (429, "too_many_sessions", "rate_limit_error", None),
    ],
)
async def test_a_refusal_of_the_scheduler_keeps_its_status(
    world: World, asked: Asked, status: int, code: str, kind: str, should_retry: str | None
) -> None:
    asked.say = lambda call: Reply(call, status, code, "no")
    for reply in (await world.client.post("/v1/sessions"), await world.client.get("/v1/sessions/s")):
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["type"], error["message"]) == (status, code, kind, "no")
        assert reply.headers.get("x-should-retry") == should_retry


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/sessions", {"session_id": "a b"}, "session_id"),
        ("/v1/sessions", {"session_id": "a\n"}, "session_id"),
        ("/v1/sessions", {"session_id": "é"}, "session_id"),
        ("/v1/sessions", {"session_id": "x" * 129}, "session_id"),
        ("/v1/sessions", {"session_id": 5}, "session_id"),
        ("/v1/sessions", {"session_id": "."}, "session_id"),
        ("/open_session", {"capacity_of_str_len": 1, "session_id": ".."}, "session_id"),
        ("/v1/sessions", {"timeout": 0}, "timeout"),
        ("/v1/sessions", {"timeout": -1}, "timeout"),
        ("/v1/sessions", {"timeout": "5"}, "timeout"),
        ("/v1/sessions", {"streaming": 1}, "streaming"),
        ("/open_session", {}, "capacity_of_str_len"),
        ("/open_session", {"capacity_of_str_len": "5"}, "capacity_of_str_len"),
        ("/open_session", {"capacity_of_str_len": -5}, "capacity_of_str_len"),
        ("/close_session", {}, "session_id"),
        ("/close_session", {"session_id": "a b"}, "session_id"),
    ],
)
async def test_a_bad_value_never_reaches_the_scheduler(
    world: World, asked: Asked, path: str, body: dict[str, Any], param: str | None
) -> None:
    reply = await world.client.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert asked.messages == []


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"session_id":"a","session_id":"b"}'])
async def test_a_body_that_is_not_an_object_is_refused(world: World, asked: Asked, body: bytes) -> None:
    reply = await world.client.post("/v1/sessions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400


async def test_no_session_is_opened_while_the_server_drains(world: World, asked: Asked) -> None:
    world.state.liveness.start_draining()
    assert (await world.client.post("/v1/sessions")).status_code == 503
    assert (await world.client.delete("/v1/sessions/s")).status_code == 200


async def test_a_dead_engine_ends_open_session_calls(world: World, asked: Asked) -> None:
    world.engine.full = True
    assert (await world.client.get("/v1/sessions")).status_code == 503


async def test_sessions_belong_to_the_key_that_asks(engine: ScriptedEngine, config: ServerConfig, asked: Asked) -> None:
    state = build_state(engine, config, access=access_from(AccessConfig(api_key=("one", "two"))))
    transport = httpx.ASGITransport(create_app(state))
    for key in ("one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            await client.post("/v1/sessions")
            await client.get("/v1/sessions")
            await client.delete("/v1/sessions/s")
            assert (await client.post("/v1/completions", json={"prompt": "x", "session_id": "s"})).status_code == 200
    state.prompts.close()
    owners = [message.owner for message in asked.messages]
    assert owners[:3] == [owners[0]] * 3
    assert owners[3:] == [owners[3]] * 3
    assert "" not in owners
    assert owners[0] != owners[3]
    assert [request.session.owner for request in engine.requests] == [owners[0], owners[3]]
