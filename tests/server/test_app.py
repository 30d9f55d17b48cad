"""Routes, middleware and error replies of the whole application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from ebbtide.errors import Rejected
from ebbtide.server.app import routes
from ebbtide.server.http.middleware import VALID_ID
from ebbtide.server.tracing.middleware import OPERATIONS

from .conftest import World

pytestmark = pytest.mark.anyio


async def test_an_unknown_route_answers_with_an_error_object(world: World) -> None:
    reply = await world.client.get("/v1/nothing")
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "not_found_error"


async def test_a_wrong_method_names_the_right_one(world: World) -> None:
    reply = await world.client.get("/v1/chat/completions")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_a_wrong_content_type_is_415(world: World) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = await world.client.post("/v1/completions", content=b"{}", headers={"content-type": kind})
        assert reply.status_code == 415
        assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_json_with_a_charset_is_json(world: World) -> None:
    for charset in (
        "; charset=utf-8",
        ';charset="UTF-8"',
        "; x=y; Charset = utf8 ; z",
        "; charset=us-ascii",
        ";",
        "; charset=",
    ):
        headers = {"content-type": f"Application/JSON{charset}"}
        reply = await world.client.post("/v1/completions", content=b'{"prompt":"x"}', headers=headers)
        assert reply.status_code == 200, charset


@pytest.mark.parametrize(
    "charset", ["utf-16", "UTF-16LE", '"utf-32"', "iso-8859-1", "latin1", "unicode_escape", "x" * 300]
)
async def test_another_charset_is_415(world: World, charset: str) -> None:
    headers = {"content-type": f"application/json; charset={charset}"}
    body = '{"prompt":"x"}'.encode("utf-16") if "16" in charset else b'{"prompt":"x"}'
    for path in ("/v1/completions", "/pause_generation", "/tokenize"):
        reply = await world.client.post(path, content=body, headers=headers)
        assert reply.status_code == 415
        assert "UTF-8" in reply.json()["error"]["message"]
        assert len(reply.content) < 500
    assert world.engine.requests == []


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_413_and_closes_the_connection(world: World, declared: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 10_000

    content = b" " * 300_000 if declared else pieces()
    reply = await world.client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 413
    assert reply.headers["connection"] == "close"
    assert reply.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("wanted", ["abc", "A.b-c_9", "x" * 128])
async def test_a_well_formed_request_id_is_echoed(world: World, wanted: str) -> None:
    reply = await world.client.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": wanted})
    assert reply.headers["x-request-id"] == wanted
    assert reply.json()["id"] == f"cmpl-{wanted}"


@pytest.mark.parametrize("wanted", ["", "a b", "a\tERROR forged", "x" * 129, "é"])
async def test_another_request_id_is_replaced(world: World, wanted: str) -> None:
    for path in ("/health", "/nothing"):
        reply = await world.client.get(path, headers={b"x-request-id": wanted.encode()})
        assert reply.headers["x-request-id"] != wanted
        assert VALID_ID.fullmatch(reply.headers["x-request-id"])


async def test_requests_with_the_same_id_are_independent(world: World) -> None:
    headers = {"x-request-id": "same"}
    body = {"prompt": ["a", "b"], "n": 2, "rid": "same", "request_id": "same"}
    for _ in range(3):
        assert (await world.client.post("/v1/completions", json=body, headers=headers)).status_code == 200
    rids = [rid for request in world.engine.requests for rid in request.rids]
    assert len(set(rids)) == len(rids) == 12
    assert not any("same" in rid for rid in rids)


async def test_a_bug_answers_with_an_error_object_and_the_request_id(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: object) -> bool:
        raise RuntimeError("broken")

    world.engine.send = fail  # type: ignore[method-assign]
    reply = await world.client.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "mine"})
    assert reply.status_code == 500
    assert reply.json()["error"]["type"] == "server_error"
    assert "broken" not in reply.text
    assert reply.headers["x-request-id"] == "mine"
    assert "mine" in caplog.text


async def test_the_debug_log_follows_a_request_and_has_no_part_of_its_prompt(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="ebbtide")
    await world.client.post(
        "/v1/completions?api_key=hidden", json={"prompt": "secret"}, headers={"x-request-id": "mine"}
    )
    mine = [record.getMessage() for record in caplog.records if record.__dict__.get("rid") == "mine"]
    (rid,) = world.engine.requests[0].rids
    assert mine[0] == f"request mine has engine ids {rid}: 1 prompts with 6 tokens in total, 1 choices each"
    assert mine[1].startswith("request mine: POST /v1/completions was answered with 200 in ")
    assert "secret" not in caplog.text
    assert "hidden" not in caplog.text


async def test_the_debug_log_names_the_trace_of_a_request(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="ebbtide")
    for parent in ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "forged\tERROR", "00-short-1-1"):
        await world.client.get("/health", headers={"x-request-id": "mine", "traceparent": parent})
    lines = [record.getMessage() for record in caplog.records if record.__dict__.get("rid") == "mine"]
    assert lines[0].startswith("request mine of trace 4bf92f3577b34da6a3ce929d0e0e4736: GET /health")
    assert all(line.startswith("request mine: GET") for line in lines[1:])


async def test_responses_report_their_processing_time(world: World) -> None:
    for path in ("/health", "/nothing", "/v1/models"):
        assert int((await world.client.get(path)).headers["openai-processing-ms"]) >= 0


async def test_models_are_listed_and_found_by_an_id_with_slashes(world: World) -> None:
    listed = (await world.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("org/sim", "model", 512)
    assert (await world.client.get("/v1/models/org/sim")).json() == card
    missing = await world.client.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_an_unknown_model_is_404_on_both_routes(world: World) -> None:
    for send in (world.chat, world.complete):
        reply = await send(model="gpt-4")
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "model_not_found"
        assert (await send(model="org/sim")).status_code == 200


async def test_a_full_scheduler_queue_is_503_with_retry_after(world: World) -> None:
    world.engine.full = True
    reply = await world.chat()
    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "5"
    assert world.state.manager.num_open == 0


async def test_draining_refuses_new_work_and_readiness_but_not_liveness(world: World) -> None:
    world.state.liveness.start_draining()
    for reply in (await world.chat(), await world.complete(), await world.client.get("/ready")):
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "draining"
        assert reply.headers["connection"] == "close"
        assert "retry-after" in reply.headers
    assert (await world.client.get("/health")).status_code == 200


async def test_a_dead_child_is_neither_healthy_nor_ready(world: World) -> None:
    assert (await world.client.get("/ready")).status_code == 200
    world.state.liveness.mark_dead("scheduler")
    assert (await world.client.get("/health")).status_code == 503
    assert (await world.client.get("/ready")).status_code == 503
    assert (await world.chat()).status_code == 503


async def test_the_schema_describes_routes_and_bodies(world: World) -> None:
    schema = (await world.client.get("/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/ready", "/metrics"} <= set(
        schema["paths"]
    )
    chat = schema["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "temperature", "max_completion_tokens", "top_logprobs"} <= set(chat)
    content = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/CompletionBody"}


async def test_should_retry_and_retry_after_become_headers(world: World) -> None:
    error = Rejected("wait", status=429, kind="rate_limit_error", code="queue_full", retry_after_s=0.2)
    world.engine.answer = lambda request: world.state.manager.fail_all(error)
    reply = await world.chat()
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "1"
    assert "x-should-retry" not in reply.headers


async def test_every_route_that_uses_the_model_is_traced(world: World) -> None:
    pooling = "ebbtide.server.api.pooling."
    table = routes(world.state)
    assert {r.path for r in table if r.streams or r.endpoint.__module__.startswith(pooling)} == set(OPERATIONS)
