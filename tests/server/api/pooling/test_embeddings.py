"""POST /v1/embeddings of the chat model, over a scripted engine whose vectors depend on the prompt."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
import openai
import pytest

from ebbtide.messages import GenerateReq, PressureUsage
from ebbtide.model_runner.sim.sim_embedding import DIMENSIONS, embedding_of

from ...conftest import ScriptedEngine, Served, World, ok

pytestmark = pytest.mark.anyio


def vector(text: str) -> bytes:
    """The vector that the scripted engine gives to a text."""
    return embedding_of(int.from_bytes(text.encode()[-8:], "big"))


def answer_with(engine: ScriptedEngine, **more: Any) -> None:
    """Let ``engine`` answer every prompt with its vector."""

    def answer(request: GenerateReq) -> None:
        [rid] = request.rids
        found = vector(bytes(request.prompt).decode())
        engine.emit(rid, "", 0, finish="stop", prompt_tokens=len(request.prompt), embedding=found, **more)

    engine.answer = answer


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()
    answer_with(engine)
    return engine


async def embed(world: World, value: Any, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = ok(await world.client.post("/v1/embeddings", json={"input": value, **fields})).json()
    return body


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("tide", ["tide"]),
        (["ebb", "tide", "ebb"], ["ebb", "tide", "ebb"]),
        (list(b"tide"), ["tide"]),
        ([list(b"ebb"), list(b"tide")], ["ebb", "tide"]),
    ],
)
async def test_every_form_of_input_gets_its_vectors_in_order(world: World, value: Any, texts: list[str]) -> None:
    body = await embed(world, value, user="someone")
    assert [entry["index"] for entry in body["data"]] == list(range(len(texts)))
    assert {entry["object"] for entry in body["data"]} == {"embedding"}
    for entry, text in zip(body["data"], texts, strict=True):
        assert np.array(entry["embedding"], "<f4").tobytes() == vector(text)
    count = sum(map(len, texts))
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert (body["object"], body["model"]) == ("list", "org/sim")
    assert body["id"].startswith("embd-")


async def test_the_engine_computes_the_prompt_only(world: World) -> None:
    await embed(world, ["a", "b"], cache_salt="pepper")
    assert [(r.sampling.max_tokens, r.sampling.embedding, r.num_before) for r in world.engine.requests] == [
        (0, True, 0),
        (0, True, 1),
    ]
    assert {request.namespace for request in world.engine.requests} == {"salt:pepper"}


async def test_base64_is_little_endian_float32(world: World) -> None:
    [entry] = (await embed(world, "tide", encoding_format="base64"))["data"]
    assert base64.b64decode(entry["embedding"]) == vector("tide")


async def test_a_large_reply_has_every_vector(world: World) -> None:
    texts = [f"text {index}" for index in range(2048)]
    body = await embed(world, texts)
    assert len(texts) * DIMENSIONS * 4 > 256 * 1024
    assert [np.array(e["embedding"], "<f4").tobytes() for e in body["data"]] == [vector(text) for text in texts]


async def test_a_retraction_is_in_the_usage(world: World, engine: ScriptedEngine) -> None:
    answer_with(engine, pressure=PressureUsage(2, 30, 400))
    body = await embed(world, ["a", "b"])
    assert body["usage"]["ebbtide"] == {"num_retractions": 4, "recomputed_tokens": 60, "queue_ms": 400}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[1], []]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [[70000]]}, "input"),
        ({"input": None}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "model": 1}, "model"),
        ({"input": "a", "priority": 101}, "priority"),
        ({"input": "a", "timeout": 0}, "timeout"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
async def test_invalid_requests_name_the_field(world: World, fields: dict[str, Any], param: str) -> None:
    reply = await world.client.post("/v1/embeddings", json=fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]
    assert world.engine.requests == []


@pytest.mark.parametrize("value", ["x" * 257, ["a", "x" * 300], [65] * 257, "x" * 513])
async def test_a_text_that_is_too_long_is_refused_with_the_limit(world: World, value: Any) -> None:
    reply = await world.client.post("/v1/embeddings", json={"input": value})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert "256" in error["message"] or "512" in error["message"]
    assert world.state.metrics.render().count(b'num_aborted_requests_total{model_name="sim",reason="context_l') == 1


async def test_a_text_of_the_whole_pool_fits(world: World) -> None:
    assert (await embed(world, "x" * 256))["usage"]["prompt_tokens"] == 256


async def test_another_model_is_unknown(world: World) -> None:
    reply = await world.client.post("/v1/embeddings", json={"input": "a", "model": "text-embedding-3-small"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    await embed(world, "a", model="org/sim")


async def test_a_failure_of_one_input_fails_the_request(world: World, engine: ScriptedEngine) -> None:
    def answer(request: GenerateReq) -> None:
        if request.prompt == list(b"b"):
            engine.abort(request.rids[0])

    engine.answer = answer
    reply = await world.client.post("/v1/embeddings", json={"input": ["a", "b", "c"]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "kv_cache_exhausted")
    assert reply.headers["x-should-retry"] == "false"
    assert {abort.reason for abort in engine.aborts} == {"kv_cache_exhausted", "sibling"}
    assert world.state.manager.num_open == 0


async def test_answered_requests_are_counted(world: World) -> None:
    await embed(world, ["ebb", "tide"])
    text = world.state.metrics.render().decode()
    for name, value in (("requests", 1), ("inputs", 2), ("tokens", 7)):
        assert f'ebbtide:embedding_{name}_total{{model_name="sim"}} {value}.0' in text


def test_a_client_that_leaves_aborts_its_inputs(served: Served, engine: ScriptedEngine) -> None:
    engine.answer = lambda request: None
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=1)
    with pytest.raises(openai.APITimeoutError):
        client.embeddings.create(model="org/sim", input=["a", "b"])
    client.close()
    asyncio.run(_until(lambda: len(engine.aborts) == 2))
    assert {abort.reason for abort in engine.aborts} == {"client"}
    assert served.state.manager.num_open == 0


async def _until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit])
def test_the_openai_client_reads_the_vectors(served: Served, encoding: Any) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        reply = client.embeddings.create(model="org/sim", input=["ebb", "tide"], encoding_format=encoding)
    for entry, text in zip(reply.data, ["ebb", "tide"], strict=True):
        found = base64.b64decode(entry.embedding) if isinstance(entry.embedding, str) else entry.embedding
        data = found if isinstance(found, bytes) else np.array(found, "<f4").tobytes()
        assert data == vector(text)
    assert reply.usage.prompt_tokens == 7
