"""Token ids that exist only in the tokenizer or only in the embedding."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from ebbtide.config import ServerConfig
from ebbtide.messages import RunnerInfo
from ebbtide.tokenization.vocabulary import SIM_VOCAB_SIZE

from ..conftest import INFO, ScriptedEngine, World, ok

pytestmark = pytest.mark.anyio

SNOW = "let it \u2603"  # the bytes 226, 152, 131
PADDED = SIM_VOCAB_SIZE + 5


@pytest.fixture
def info(request: pytest.FixtureRequest) -> RunnerInfo:
    """The test's parameter is the size of the embedding; the default is 200."""
    return structs.replace(INFO, vocab_size=getattr(request, "param", 200), eos_token_ids=())


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": SNOW}, "prompt"),
        ("/v1/completions", {"prompt": ["fine", SNOW], "echo": True, "max_tokens": 0}, "prompt"),
        ("/v1/completions", {"prompt": SNOW, "session_id": "s"}, "prompt"),
        ("/v1/completions", {"prompt": [1, 200]}, "prompt"),
        ("/v1/completions", {"prompt": "fine", "stop_token_ids": [200]}, "stop_token_ids"),
        ("/v1/completions", {"prompt": "fine", "logit_bias": {"200": 1}}, "logit_bias"),
        ("/generate", {"text": SNOW}, "text"),
        ("/generate", {"input_ids": [200]}, "input_ids"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "session_id": "s"}, "messages"),
        ("/v1/responses", {"input": "hi"}, "input"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}, "messages"),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/tokenize", {"prompt": SNOW}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/detokenize", {"tokens": [200]}, "tokens"),
    ],
)
async def test_an_id_without_a_row_is_refused_before_the_scheduler_sees_it(
    path: str, body: dict[str, Any], param: str, world: World
) -> None:
    reply = await world.client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error.get("param", param) == param
    assert any(id_ in error["message"] for id_ in ("200", "226", "259"))
    assert world.engine.requests == []


async def test_other_text_is_answered(world: World) -> None:
    ok(await world.complete(prompt="plain"))
    constrained = await world.complete(prompt="plain", structured_outputs={"choice": ["a", "b"]})
    assert constrained.status_code == 200


@pytest.mark.parametrize("info", [300], indirect=True)
async def test_an_id_without_a_token_is_input(world: World, engine: ScriptedEngine, config: ServerConfig) -> None:
    ids = [PADDED, 65, 66, PADDED]
    for more in ({}, {"echo": True}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 1, "return_token_ids": True}):
        ok(await world.complete(prompt=ids, **more))
    reply = ok(await world.complete(prompt=ids, echo=True)).json()
    assert reply["choices"][0]["text"] == "ABHello!"
    fields = {"return_logprob": True, "return_text_in_logprobs": True, "logprob_start_len": 0}
    ok(await world.client.post("/generate", json={"input_ids": ids, **fields}))
    ok(await world.complete(prompt="x", logit_bias={str(PADDED): 5}, stop_token_ids=[PADDED]))
    assert ok(await world.client.post("/detokenize", json={"tokens": ids})).json()["text"] == "AB"
    assert engine.requests[0].prompt == ids
