"""The routes with an embedding model, beside a chat model and alone, over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from ebbtide.config import AccessConfig, ServerConfig
from ebbtide.messages import AbortReq, EncodedBatch, EncodedItem, EncodeReq, EncoderInfo
from ebbtide.server.api.pooling.pooling_model import EncoderModel
from ebbtide.server.api.pooling.service import PoolingService
from ebbtide.server.app import create_app, create_encoder_app
from ebbtide.server.http.access import access_from

from ...conftest import ScriptedEngine, ok
from ...conftest import build_state as build

pytestmark = pytest.mark.anyio

VECTORS = EncoderInfo(scores_pairs=False, context_length=16, vocab_size=100, dimensions=4, shorter=True)
SCORES = EncoderInfo(scores_pairs=True, context_length=16, vocab_size=100, dimensions=1)
BOTH, ALONE = True, False


@asynccontextmanager
async def serve(
    engine: ScriptedEngine, info: EncoderInfo = VECTORS, *, chat: bool = ALONE, keys: tuple[str, ...] = ()
) -> AsyncIterator[httpx.AsyncClient]:
    """The application of a server with the embedding model ``mini``."""
    model = EncoderModel("mini", info)
    access = access_from(AccessConfig(api_key=keys))
    state = build(engine, ServerConfig(), encoder=model, access=access)
    service = PoolingService(state.config, state.manager, state.metrics, state.liveness, access, (model,))
    app = create_app(state) if chat else create_encoder_app(service, 1)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    state.prompts.close()
    state.structured.close()


@pytest.fixture
def engine() -> ScriptedEngine:
    """The vector of a text has its length first; the score of a pair is the number of common letters."""
    engine = ScriptedEngine()

    def encode(request: EncodeReq) -> None:
        assert engine.manager is not None
        if request.text.startswith("long"):
            text = "This model's maximum context length is 16 tokens, but an input has 17 tokens."
            engine.manager.handle(AbortReq(request.rid, "x", 400, "context_length_exceeded", text))
            return
        length = len(request.text) if request.ids is None else len(request.ids)
        found = [length, 3, 4, 5] if request.other is None else [len(set(request.text) & set(request.other))]
        item = EncodedItem(request.rid, np.array(found, "<f4").tobytes(), length)
        engine.manager.handle(EncodedBatch([item], length, 0.1))

    engine.encode = encode
    return engine


async def post(client: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = ok(await client.post(path, json=fields)).json()
    return body


@pytest.mark.parametrize("chat", [BOTH, ALONE])
async def test_the_embedding_model_answers_by_name_and_by_default(engine: ScriptedEngine, chat: bool) -> None:
    async with serve(engine, chat=chat) as client:
        for fields in ({}, {"model": "mini"}):
            body = await post(client, "/v1/embeddings", input=["ebb", "tide", "x"], **fields)
            assert [entry["embedding"] for entry in body["data"]] == [[3, 3, 4, 5], [4, 3, 4, 5], [1, 3, 4, 5]]
            assert (body["model"], body["usage"]) == ("mini", {"prompt_tokens": 8, "total_tokens": 8})
        body = await post(client, "/v1/embeddings", input=[[5, 6], [7]])
        assert [entry["embedding"][0] for entry in body["data"]] == [2, 1]
        assert [request.ids for request in engine.requests[-2:]] == [[5, 6], [7]]


async def test_the_model_field_routes_between_both_models(engine: ScriptedEngine) -> None:
    engine.answer = lambda request: engine.emit(
        request.rids[0], "", 0, finish="stop", prompt_tokens=1, embedding=np.array([1, 0], "<f4").tobytes()
    )
    async with serve(engine, chat=BOTH) as client:
        body = await post(client, "/v1/embeddings", input="x", model="org/sim")
        assert (body["model"], body["data"][0]["embedding"]) == ("org/sim", [1, 0])
        body = await post(client, "/v1/rerank", query="x", documents=["y"], model="org/sim")
        assert body["results"][0]["relevance_score"] == pytest.approx(1)
        unknown = await client.post("/v1/embeddings", json={"input": "x", "model": "other"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert all(name in unknown.json()["error"]["message"] for name in ("'mini'", "'org/sim'"))
        chat = await client.post("/v1/completions", json={"prompt": "x", "model": "mini"})
        assert (chat.status_code, chat.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(("chat", "names"), [(BOTH, ["org/sim", "mini"]), (ALONE, ["mini"])])
async def test_both_models_are_listed(engine: ScriptedEngine, chat: bool, names: list[str]) -> None:
    async with serve(engine, chat=chat) as client:
        listed = ok(await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == names
        assert listed[-1]["max_model_len"] == 16
        for name in names:
            assert ok(await client.get(f"/v1/models/{name}")).json()["id"] == name
        form = ok(await client.get("/v1/models", headers={"anthropic-version": "1"})).json()
        assert ([model["id"] for model in form["data"]], form["first_id"], form["last_id"]) == (
            names,
            names[0],
            names[-1],
        )
        assert (await client.get("/v1/models/other")).status_code == 404


@pytest.mark.parametrize(
    ("info", "dimensions", "expected"),
    [
        (VECTORS, 1, [1.0]),
        (VECTORS, 2, [0.8, 0.6]),
        (VECTORS, 4, [4, 3, 4, 5]),
        (VECTORS, 5, None),
        (EncoderInfo(False, 16, 100, 4), 2, None),
        (EncoderInfo(False, 16, 100, 4), 4, [4, 3, 4, 5]),
    ],
)
async def test_vectors_are_shortened_where_the_model_allows_it(
    engine: ScriptedEngine, info: EncoderInfo, dimensions: int, expected: list[float] | None
) -> None:
    async with serve(engine, info) as client:
        reply = await client.post("/v1/embeddings", json={"input": "tide", "dimensions": dimensions})
        if expected is None:
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "dimensions")
        else:
            assert ok(reply).json()["data"][0]["embedding"] == pytest.approx(expected)


@pytest.mark.parametrize("chat", [BOTH, ALONE])
async def test_a_cross_encoder_scores_pairs(engine: ScriptedEngine, chat: bool) -> None:
    async with serve(engine, SCORES, chat=chat) as client:
        body = await post(client, "/v1/rerank", query="abc", documents=["xyz", "cab", "a"])
        assert [(one["index"], one["relevance_score"]) for one in body["results"]] == [(1, 3), (2, 1), (0, 0)]
        assert [(request.text, request.other) for request in engine.requests] == [
            ("abc", "xyz"),
            ("abc", "cab"),
            ("abc", "a"),
        ]
        body = await post(client, "/v1/score", text_1=["ab", "b"], text_2=["ba", "c"])
        assert [entry["score"] for entry in body["data"]] == [2, 0]
        refused = await client.post("/v1/embeddings", json={"input": "x", "model": "mini"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")


async def test_beside_a_cross_encoder_the_chat_model_embeds_by_default(engine: ScriptedEngine) -> None:
    engine.answer = lambda request: engine.emit(
        request.rids[0], "", 0, finish="stop", prompt_tokens=1, embedding=np.array([1, 0], "<f4").tobytes()
    )
    async with serve(engine, SCORES, chat=BOTH) as client:
        assert (await post(client, "/v1/embeddings", input="x"))["model"] == "org/sim"
        assert (await post(client, "/v1/rerank", query="x", documents=["y"]))["model"] == "mini"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/embeddings", {"input": ["a", "long"]}, "input"),
        ("/v1/embeddings", {"input": "x" * (16 * 256 + 1)}, "input"),
        ("/v1/embeddings", {"input": [[1, 100]]}, "input"),
        ("/v1/embeddings", {"input": [-1]}, "input"),
        ("/v1/rerank", {"query": "a", "documents": ["long"]}, "documents"),
        ("/v1/score", {"queries": "a", "documents": ["long"]}, "documents"),
        ("/v1/score", {"text_1": "a", "text_2": ["long"]}, "text_2"),
    ],
)
async def test_refusals_of_the_encoder_name_the_field(
    engine: ScriptedEngine, path: str, fields: dict[str, Any], param: str
) -> None:
    async with serve(engine) as client:
        reply = await client.post(path, json=fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_without_a_chat_model_text_routes_state_the_reason(engine: ScriptedEngine) -> None:
    async with serve(engine) as client:
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"):
            reply = await client.post(path, json={"prompt": "x"})
            assert reply.status_code == 404, path
            assert "mini" in reply.text
        assert ok(await client.get("/")).json()["model"] == "mini"
        for path in ("/health", "/ready", "/metrics", "/version", "/openapi.json"):
            ok(await client.get(path))


async def test_without_a_chat_model_every_route_except_the_probes_needs_a_key(engine: ScriptedEngine) -> None:
    secret = {"authorization": "Bearer secret"}
    async with serve(engine, keys=("secret",)) as client:
        paths = ok(await client.get("/openapi.json", headers=secret)).json()["paths"]
        assert {"/v1/embeddings", "/v2/rerank", "/score", "/v1/models", "/metrics"} < set(paths)
        for path, methods in paths.items():
            for method in methods:
                status = (await client.request(method, path.replace("{model_id}", "x"))).status_code
                assert (status == 401) is (path not in ("/health", "/ready", "/metrics")), path
        ok(await client.post("/v1/embeddings", json={"input": "x"}, headers=secret))
