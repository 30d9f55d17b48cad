"""POST /v1/completions without a stream."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.messages import TextAlternative, TextBatch, TextItem, TextLogprob

pytestmark = pytest.mark.anyio


async def test_a_text_is_continued_with_sixteen_tokens_by_default(world) -> None:
    body = (await world.complete()).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    [request] = world.engine.requests
    assert (request.prompt, request.sampling.max_tokens) == ([*b"hi"], 16)


async def test_null_max_tokens_means_the_default(world) -> None:
    await world.complete(max_tokens=None)
    assert world.engine.requests[0].sampling.max_tokens == 16


async def test_the_default_shrinks_to_what_the_context_leaves(world) -> None:
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
async def test_every_form_of_prompt(world, prompt: Any, ids: list[list[int]] | None) -> None:
    reply = await world.complete(prompt=prompt)
    if ids is None:
        assert reply.status_code == 400
    else:
        assert [request.prompt for request in world.engine.requests] == ids
        assert [choice["index"] for choice in reply.json()["choices"]] == list(range(len(ids)))


async def test_choices_are_numbered_prompt_by_prompt(world) -> None:
    def answer(request) -> None:
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
async def test_a_bad_prompt_is_refused_before_anything_runs(world, prompt: Any) -> None:
    reply = await world.complete(prompt=prompt)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"
    assert world.engine.requests == []


async def test_one_too_long_prompt_of_a_batch_stops_all_of_it(world) -> None:
    reply = await world.complete(prompt=["a", "b", "c" * 600, "d"])
    assert reply.status_code == 400
    assert world.engine.requests == []
    assert (await world.complete(prompt=["x", "y"])).status_code == 200
    assert [request.prompt for request in world.engine.requests] == [[120], [121]]


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"use_beam_search": True}])
async def test_fields_of_others_are_refused_by_name(world, fields: dict[str, Any]) -> None:
    reply = await world.complete(**fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(fields))


async def test_logprobs_come_as_parallel_lists(world) -> None:
    logprobs = (await world.complete(logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("Hello!")
    assert logprobs["token_logprobs"] == [-0.5] * 6
    assert logprobs["top_logprobs"][1] == {"1.0": -1.0, "e": -0.5}
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4, 5]


async def test_half_characters_and_minus_infinity_are_valid_json(world) -> None:
    halves = [TextAlternative("\ufffd", raw, float("-inf"), raw[0]) for raw in (b"\xc3", b"\xa9", b"x")]

    def answer(request) -> None:
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
