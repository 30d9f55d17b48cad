"""POST /v1/rerank and /v1/score of the chat model, which compares vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebbtide.messages import GenerateReq

from ...conftest import ScriptedEngine, World, ok

pytestmark = pytest.mark.anyio

# The scripted vectors: the cosine of a document and the query "north" is the sine of its angle.
ANGLES = {"north": 90, "east": 0, "north-east": 45, "south": -90, "up": 80}


@pytest.fixture
def engine() -> ScriptedEngine:
    engine = ScriptedEngine()

    def answer(request: GenerateReq) -> None:
        angle = np.radians(ANGLES[bytes(request.prompt).decode()])
        found = np.array([np.cos(angle), np.sin(angle)], "<f4").tobytes()
        engine.emit(request.rids[0], "", 0, finish="stop", prompt_tokens=len(request.prompt), embedding=found)

    engine.answer = answer
    return engine


async def post(world: World, path: str, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = ok(await world.client.post(path, json=fields)).json()
    return body


DOCUMENTS = ["east", "south", "north", "up", "north-east"]
ORDER = ["north", "up", "north-east", "east", "south"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
@pytest.mark.parametrize("top_n", [None, 1, 3, 5, 99])
@pytest.mark.parametrize("as_objects", [False, True])
async def test_documents_are_returned_in_order(world: World, path: str, top_n: int | None, as_objects: bool) -> None:
    documents = [{"text": text} if as_objects else text for text in DOCUMENTS]
    body = await post(world, path, query="north", documents=documents, top_n=top_n, model="org/sim")
    count = top_n or 5
    assert [result["document"] for result in body["results"]] == [{"text": text} for text in ORDER[:count]]
    assert [result["index"] for result in body["results"]] == [DOCUMENTS.index(text) for text in ORDER[:count]]
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == pytest.approx([np.sin(np.radians(ANGLES[text])) for text in ORDER[:count]], abs=1e-6)
    assert body["id"].startswith("rerank-")
    assert body["usage"] == {"prompt_tokens": 31, "total_tokens": 31}


async def test_documents_may_be_left_out(world: World) -> None:
    body = await post(world, "/v1/rerank", query="north", documents=["up"], return_documents=False)
    assert set(body["results"][0]) == {"index", "relevance_score"}


async def test_equal_documents_keep_their_order(world: World) -> None:
    body = await post(world, "/v1/rerank", query="north", documents=["up", "up", "north", "up"])
    assert [result["index"] for result in body["results"]] == [2, 0, 1, 3]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("north", "north", [1.0]),
        ("north", ["east", "south"], [0.0, -1.0]),
        (["north"], ["east", "south"], [0.0, -1.0]),
        (["east", "south", "up"], ["east", "north", "up"], [1.0, -1.0, 1.0]),
    ],
)
async def test_pairs_are_scored(
    world: World, path: str, names: tuple[str, str], first: Any, second: Any, expected: list[float]
) -> None:
    body = await post(world, path, **{names[0]: first, names[1]: second})
    assert [entry["score"] for entry in body["data"]] == pytest.approx(expected, abs=1e-6)
    assert [entry["index"] for entry in body["data"]] == list(range(len(expected)))
    assert (body["object"], body["model"], body["data"][0]["object"]) == ("list", "org/sim", "score")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [""]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "a"}]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [1]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["x" * 257]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v2/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc"),
        ("/v1/score", {}, "text_1"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_2": "a"}, "text_1"),
        ("/v1/score", {"queries": "a"}, "documents"),
        ("/v1/score", {"text_1": "a", "text_2": "a", "queries": "a"}, "queries"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": ["a", ""]}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": [3]}, "text_2"),
        ("/v1/score", {"text_1": 3, "text_2": "a"}, "text_1"),
    ],
)
async def test_invalid_requests_name_the_field(world: World, path: str, fields: dict[str, Any], param: str) -> None:
    reply = await world.client.post(path, json=fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]
    assert world.engine.requests == []
