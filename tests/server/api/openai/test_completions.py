"""POST /v1/completions without a stream."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.messages import GenerateReq, TextAlternative, TextBatch, TextItem, TextLogprob
from ebbtide.tokenization.tokenizer import SimTokenizer
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ...conftest import INFO, World

pytestmark = pytest.mark.anyio


async def test_a_text_is_continued_with_sixteen_tokens_by_default(world: World) -> None:
    body = (await world.complete()).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    [request] = world.engine.requests
    assert (request.prompt, request.sampling.max_tokens) == ([*b"hi"], 16)


async def test_null_max_tokens_means_the_default(world: World) -> None:
    await world.complete(max_tokens=None)
    assert world.engine.requests[0].sampling.max_tokens == 16


async def test_the_default_shrinks_to_what_the_context_leaves(world: World) -> None:
    assert (await world.complete(prompt="x" * 250, max_tokens=5)).status_code == 200
    assert (await world.complete(prompt="x" * 500)).status_code == 400, "the pool holds 256 tokens"


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [[97, 98]]),
        (["a", "bc"], [[97], [98, 99]]),
        ([1, 2, 259], [[1, 2, 259]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [5]], None),
        (" ", [[32]]),
    ],
)
async def test_every_form_of_prompt(world: World, prompt: Any, ids: list[list[int]] | None) -> None:
    reply = await world.complete(prompt=prompt)
    if ids is None:
        assert reply.status_code == 400
    else:
        assert [request.prompt for request in world.engine.requests] == ids
        assert [choice["index"] for choice in reply.json()["choices"]] == list(range(len(ids)))


async def test_choices_are_numbered_prompt_by_prompt(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        for choice, rid in enumerate(request.rids):
            world.engine.emit(rid, f"{request.prompt[0]}.{choice}", 1, finish="stop")

    world.engine.answer = answer
    body = (await world.complete(prompt=[[7], [8]], n=2)).json()
    assert [choice["text"] for choice in body["choices"]] == ["7.0", "7.1", "8.0", "8.1"]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "prompt",
    ["", [""], [], [[]], ["ok", ""], [260], [-1], [2**31], [1.0], [True], [[1], [260]], [None], None, 5, {}, [[[1]]]],
)
async def test_a_bad_prompt_is_refused_before_anything_runs(world: World, prompt: Any) -> None:
    reply = await world.complete(prompt=prompt)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"
    assert world.engine.requests == []


async def test_one_too_long_prompt_of_a_batch_stops_all_of_it(world: World) -> None:
    reply = await world.complete(prompt=["a", "b", "c" * 600, "d"])
    assert reply.status_code == 400
    assert world.engine.requests == []
    assert (await world.complete(prompt=["x", "y"])).status_code == 200
    assert [request.prompt for request in world.engine.requests] == [[120], [121]]


class WithBos(SimTokenizer):
    """Adds token 1 before every text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids = super().encode(text, add_special_tokens=add_special_tokens)
        return [1, *ids] if add_special_tokens else ids


@pytest.mark.parametrize("prompts", [PromptReader(WithBos(), INFO)])
async def test_a_prompt_has_one_bos_token_or_none(world: World) -> None:
    sent: list[dict[str, Any]] = [
        {"prompt": "ab"},
        {"prompt": "\x01ab"},
        {"prompt": ["ab", "\x01ab"], "add_special_tokens": False},
        {"prompt": "ab", "add_special_tokens": True, "echo": True},
    ]
    replies = [await world.complete(**body) for body in sent]
    prompts = [request.prompt for request in world.engine.requests]
    assert prompts == [[1, 97, 98], [1, 97, 98], [97, 98], [1, 97, 98], [1, 97, 98]]
    assert replies[-1].json()["choices"][0]["text"] == "abHello!"
    refused = await world.chat(add_special_tokens=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "add_special_tokens")


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}, {"use_beam_search": True}])
async def test_fields_of_other_apis_are_refused_by_name(world: World, fields: dict[str, Any]) -> None:
    reply = await world.complete(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(fields))


async def test_logprobs_come_as_parallel_lists(world: World) -> None:
    logprobs = (await world.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("Hello!")
    assert logprobs["token_logprobs"] == [-0.5] * 6
    assert logprobs["top_logprobs"][1] == {"1.0": -1.0, "e": -0.5}
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]


async def test_half_characters_and_minus_infinity_are_valid_json(world: World) -> None:
    halves = [TextAlternative("\ufffd", raw, float("-inf"), raw[0]) for raw in (b"\xc3", b"\xa9", b"x")]

    def answer(request: GenerateReq) -> None:
        item = TextItem(
            request.rids[0], "\xe9x", [1, 2, 3], 3, finish="stop", logprobs=[TextLogprob(half) for half in halves]
        )
        world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    logprobs = (await world.complete(logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "\ufffd"]
    assert logprobs["token_logprobs"] == [-9999.0] * 3
    assert logprobs["text_offset"] == [0, 0, 1]
    chat = (await world.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in chat] == [[0xC3], [0xA9], [120]]


async def test_the_engine_is_asked_to_score_a_prompt_only_when_that_is_needed(world: World) -> None:
    cases: list[tuple[dict[str, Any], tuple[int | None, int | None]]] = [
        ({}, (None, None)),
        ({"echo": True}, (None, None)),
        ({"logprobs": 3}, (3, None)),
        ({"echo": True, "logprobs": 3}, (3, 3)),
        ({"prompt_logprobs": 0}, (None, 0)),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 5}, (2, 5)),
    ]
    for fields, _ in cases:
        assert (await world.complete(**fields)).status_code == 200
    asked = [(request.sampling.logprobs, request.sampling.prompt_logprobs) for request in world.engine.requests]
    assert asked == [expected for _, expected in cases]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"echo": "yes"}, "echo"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"echo": True, "session_id": "s"}, "echo"),
        ({"prompt_logprobs": 0, "session_id": "s"}, "prompt_logprobs"),
        ({"echo": True, "best_of": 2}, "best_of"),
        ({"echo": True, "suffix": "x"}, "suffix"),
    ],
)
async def test_incompatible_options_are_refused(world: World, fields: dict[str, Any], param: str) -> None:
    reply = await world.complete(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert world.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 20}, "logprobs"),
        ({"prompt_logprobs": 20}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 10, "prompt_logprobs": 10}, "prompt_logprobs"),
    ],
)
async def test_a_reply_of_too_many_log_probabilities_is_refused(
    world: World, fields: dict[str, Any], param: str
) -> None:
    prompts = ["x" * 120] * 7
    reply = await world.complete(prompt=prompts, n=20, max_tokens=1, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert world.engine.requests == []
    assert (await world.complete(prompt=prompts, n=10, max_tokens=1, **fields)).status_code == 200


@pytest.mark.parametrize("route", ["complete", "chat"])
async def test_a_failure_after_the_prompt_was_scored_is_still_an_http_error(world: World, route: str) -> None:
    """The error comes before any output, so the status line is not sent yet."""

    def answer(request: GenerateReq) -> None:
        [rid] = request.rids
        entry = TextLogprob(TextAlternative("i", b"i", -1.0, 105))
        world.state.manager.handle(TextBatch([TextItem(rid, "", [], 0, prompt=[entry], cached_tokens=0)]))
        world.engine.abort(rid)

    world.engine.answer = answer
    reply = await getattr(world, route)(prompt_logprobs=0, stream=True)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "kv_cache_exhausted"
