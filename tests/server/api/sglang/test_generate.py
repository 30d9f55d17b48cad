"""POST /generate in SGLang's format, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ebbtide.config import ServerConfig
from ebbtide.messages import SessionTurn, TextAlternative, TextBatch, TextItem, TextLogprob
from ebbtide.server.admin.abort import aborted
from ebbtide.tokenization.vocabulary import SIM_EOS

from ...conftest import World
from ...structured.test_structured import matches

pytestmark = pytest.mark.anyio


async def generate(world: Any, **fields: Any) -> Any:
    """Return the JSON of the response."""
    reply = await world.client.post("/generate", json={"text": "hi", **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def stream(world: Any, **fields: Any) -> list[dict[str, Any]]:
    """Return the chunks. The stream must end with [DONE]."""
    reply = await world.client.post("/generate", json={"text": "hi", "stream": True, **fields})
    assert reply.status_code == 200, reply.text
    *events, done = reply.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_one_response_has_sglangs_format(world: World) -> None:
    body = await generate(world, rid="mine")
    assert (body["text"], body["output_ids"]) == ("Hello!", list(b"Hello!"))
    meta = body["meta_info"]
    assert meta.pop("e2e_latency") >= 0
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "stop", "matched": None},
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "cached_tokens": 3,
        "total_retractions": 0,
    }


async def test_the_finish_reason_has_the_stop_that_matched(world: World) -> None:
    world.engine.answer = lambda request: world.engine.emit(request.rids[0], "x", 1, finish="stop", matched=SIM_EOS)
    assert (await generate(world))["meta_info"]["finish_reason"] == {"type": "stop", "matched": SIM_EOS}
    world.engine.answer = lambda request: world.engine.emit(request.rids[0], "x", 1, finish="stop", matched="END")
    assert (await generate(world))["meta_info"]["finish_reason"] == {"type": "stop", "matched": "END"}
    world.engine.answer = lambda request: world.engine.emit(request.rids[0], "x", 1, finish="length")
    assert (await generate(world))["meta_info"]["finish_reason"] == {"type": "length", "length": 1}


async def test_an_answer_without_a_rid_has_the_id_of_its_header(world: World) -> None:
    reply = await world.client.post("/generate", json={"text": "hi"})
    assert reply.json()["meta_info"]["id"] == reply.headers["x-request-id"]


async def test_an_invalid_rid_is_replaced_in_the_response_too(world: World) -> None:
    bad = "a b\n"
    reply = await world.client.post("/generate", json={"text": "hi", "rid": bad})
    assert reply.json()["meta_info"]["id"] == reply.headers["x-request-id"]
    headers = {"x-request-id": "mine"}
    body = {"text": ["hi", "there"], "rid": ["good", bad], "sampling_params": {"n": 2}}
    batch = (await world.client.post("/generate", json=body, headers=headers)).json()
    assert [one["meta_info"]["id"] for one in batch] == ["good-0", "good-1", "mine-1-0", "mine-1-1"]
    both = await world.client.post("/generate", json={**body, "rid": bad}, headers=headers)
    assert [one["meta_info"]["id"] for one in both.json()] == ["mine-0-0", "mine-0-1", "mine-1-0", "mine-1-1"]
    turn = await generate(world, session_id="s", rid="the turn's name")
    assert turn["meta_info"]["id"] == world.engine.requests[-1].session.turn == "the turn's name"


async def test_a_batch_is_answered_with_a_list(world: World) -> None:
    two = await generate(world, text=["hi", "there"], rid=["a", "b"])
    assert [(one["text"], one["meta_info"]["id"], one["meta_info"]["prompt_tokens"]) for one in two] == [
        ("Hello!", "a", 2),
        ("Hello!", "b", 5),
    ]
    assert [len(await generate(world, text=["hi"])), len(await generate(world, text=None, input_ids=[[1, 2]]))] == [
        1,
        1,
    ]
    ids = [request.prompt for request in world.engine.requests]
    assert ids == [[*b"hi"], [*b"there"], [*b"hi"], [1, 2]]


async def test_samples_of_a_prompt_are_a_list_too(world: World) -> None:
    three = await generate(world, sampling_params={"n": 3}, rid="r")
    assert [one["meta_info"]["id"] for one in three] == ["r-0", "r-1", "r-2"]
    many = await generate(world, text=["a", "b"], sampling_params={"n": 2}, rid="r")
    assert [one["meta_info"]["id"] for one in many] == ["r-0-0", "r-0-1", "r-1-0", "r-1-1"]


async def test_every_sampling_field_reaches_the_scheduler(world: World) -> None:
    await generate(
        world,
        sampling_params={
            "max_new_tokens": 9,
            "min_new_tokens": 2,
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 7,
            "min_p": 0.125,
            "presence_penalty": -2,
            "frequency_penalty": 2,
            "repetition_penalty": 1.5,
            "logit_bias": {"65": -100},
            "sampling_seed": 11,
            "stop": ["a"],
            "stop_token_ids": [70],
            "ignore_eos": True,
            "skip_special_tokens": False,
            "no_stop_trim": True,
            "spaces_between_special_tokens": True,
        },
        priority=-3,
        extra_key="mine",
    )
    [request] = world.engine.requests
    sampling, text = request.sampling, request.text
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature) == (9, 2, 0.5)
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (0.25, 7, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2, 2, 1.5)
    assert (sampling.logit_bias, sampling.seed) == ({65: -100}, 11)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ((70,), True)
    assert (text.stop, text.include_stop, text.skip_special_tokens) == (("a",), True, False)
    assert text.shown_stop_ids == (70,)
    assert (request.priority, request.namespace) == (-3, "salt:mine")


async def test_each_prompt_of_a_batch_may_have_its_own_sampling(world: World) -> None:
    await generate(world, text=["a", "b"], sampling_params=[{"max_new_tokens": 3}, {"temperature": 0}])
    first, second = (request.sampling for request in world.engine.requests)
    assert (first.max_tokens, first.temperature, second.max_tokens, second.temperature) == (3, 1.0, 128, 0.0)


async def test_logprobs_are_triples(world: World) -> None:
    meta = (await generate(world, return_logprob=True, top_logprobs_num=2))["meta_info"]
    assert meta["output_token_logprobs"][0] == [-0.5, ord("H"), None]
    assert meta["output_top_logprobs"][1] == [[-1.0, 0, None], [-2.0, 1, None]]
    assert meta["input_token_logprobs"] == []
    meta = (await generate(world, return_logprob=True, return_text_in_logprobs=True))["meta_info"]
    assert meta["output_token_logprobs"][0] == [-0.5, ord("H"), "H"]
    assert "output_top_logprobs" not in meta
    assert "output_token_logprobs" not in (await generate(world))["meta_info"]


async def test_prompt_logprobs_can_start_at_any_token(world: World) -> None:
    def answer(request: Any) -> None:
        scores = [
            TextLogprob(
                TextAlternative(chr(token), bytes([token]), -float(token), token),
                [TextAlternative("z", b"z", -1.0, 122)],
            )
            for token in request.prompt[1:]
        ]
        for index, rid in enumerate(request.rids):
            item = TextItem(rid, "", [], 0, finish="length", cached_tokens=0, prompt=scores if index == 0 else None)
            world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    look = {"text": "abc", "return_logprob": True, "sampling_params": {"max_new_tokens": 0}}
    meta = (await generate(world, **look, logprob_start_len=0, top_logprobs_num=1))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 97, None], [-98.0, 98, None], [-99.0, 99, None]]
    assert meta["input_top_logprobs"] == [None, [[-1.0, 122, None]], [[-1.0, 122, None]]]
    assert (meta["output_token_logprobs"], meta["completion_tokens"]) == ([], 0)
    meta = (await generate(world, **look, logprob_start_len=2, return_text_in_logprobs=True))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 99, "c"]]
    assert (await generate(world, **look, logprob_start_len=3))["meta_info"]["input_token_logprobs"] == []
    assert [request.sampling.prompt_logprobs for request in world.engine.requests] == [1, 0, 0]
    look["sampling_params"] = {"max_new_tokens": 0, "n": 2}
    two = await generate(world, **look, logprob_start_len=1)
    assert [len(one["meta_info"]["input_token_logprobs"]) for one in two] == [2, 0], "a prompt is looked at once"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_can_be_computed_without_output(world: World, streamed: bool) -> None:
    def answer(request: Any) -> None:
        item = TextItem(request.rids[0], "", [], 0, finish="length", cached_tokens=1)
        world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    fields = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    body = (await stream(world, **fields))[0] if streamed else await generate(world, **fields)
    assert (body["text"], body["output_ids"]) == ("", [])
    meta = body["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 0, 1)
    assert (meta["finish_reason"], meta["output_token_logprobs"]) == ({"type": "length", "length": 0}, [])
    assert world.engine.requests[0].sampling.max_tokens == 0


async def test_one_prompt_of_a_batch_may_have_logprobs(world: World) -> None:
    two = await generate(world, text=["a", "b"], return_logprob=[False, True], top_logprobs_num=[0, 1])
    assert ["output_top_logprobs" in one["meta_info"] for one in two] == [False, True]


async def test_a_stream_repeats_the_text_so_far(world: World) -> None:
    chunks = await stream(world)
    assert [chunk["text"] for chunk in chunks] == ["H", "He", "Hel", "Hell", "Hello", "Hello!"]
    assert [chunk["output_ids"] for chunk in chunks][:2] == [[72], [72, 101]]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 6]
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:-1]] == [None] * 5
    assert chunks[-1]["meta_info"]["finish_reason"]["type"] == "stop"
    assert {chunk["meta_info"]["cached_tokens"] for chunk in chunks} == {3}
    assert "index" not in chunks[0]


@pytest.mark.parametrize("config", [ServerConfig(keep_alive_s=0, incremental_streaming_output=True)])
async def test_a_stream_can_have_only_what_is_new(world: World, config: ServerConfig) -> None:
    chunks = await stream(world, return_logprob=True)
    assert [chunk["text"] for chunk in chunks] == list("Hello!")
    assert [chunk["output_ids"] for chunk in chunks] == [[value] for value in b"Hello!"]
    assert [len(chunk["meta_info"]["output_token_logprobs"]) for chunk in chunks] == [1] * 6
    assert chunks[-1]["meta_info"]["completion_tokens"] == 6


async def test_the_chunks_of_a_batch_have_an_index(world: World) -> None:
    chunks = await stream(world, text=["a", "b"])
    last = {chunk["index"]: chunk["text"] for chunk in chunks}
    assert last == {0: "Hello!", 1: "Hello!"}


async def test_a_stream_that_fails_ends_with_an_abort(world: World) -> None:
    def fail(request: Any) -> None:
        world.engine.emit(request.rids[0], "x", 1)
        item = TextItem(request.rids[0], "", [], 1, finish="abort")
        world.state.manager.handle(TextBatch([item]))
        world.engine.abort(request.rids[0], 1)

    world.engine.answer = fail
    reply = await world.client.post("/generate", json={"text": "hi", "stream": True})
    last = json.loads(reply.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["text"] == "x"
    assert last["meta_info"]["finish_reason"] == {"type": "abort", "message": "no room", "status_code": 500}
    assert last["error"]["code"] == "kv_cache_exhausted"


async def test_a_turn_continues_a_session_and_has_a_name(world: World) -> None:
    first = await generate(world, session_params={"id": "s"})
    second = await generate(world, text="more", rid="r2", session_params={"id": "s", "rid": first["meta_info"]["id"]})
    third = await generate(world, text=None, input_ids=[5], session_id="s", sampling_params={"max_new_tokens": 4})
    turns = [request.session for request in world.engine.requests]
    names = [answer["meta_info"]["id"] for answer in (first, second, third)]
    assert turns == [
        SessionTurn("s", turn=names[0], continuation=[*b"hi"], context_limit=True),
        SessionTurn("s", turn="r2", continuation=[*b"more"], context_limit=True, parent=names[0]),
        SessionTurn("s", turn=names[2], continuation=[5]),
    ]
    assert len(set(names)) == 3


async def test_a_turns_name_is_not_the_clients_request_id(world: World) -> None:
    for _ in range(2):
        headers = {"x-request-id": "same"}
        await world.client.post("/generate", json={"text": "hi", "session_id": "s"}, headers=headers)
    first, second = (request.session.turn for request in world.engine.requests)
    assert first != second


async def test_the_context_of_a_turn_is_counted_whole(world: World) -> None:
    def answer(request: Any) -> None:
        item = TextItem(request.rids[0], "x", [1], 1, finish="stop", cached_tokens=90, prompt_tokens=100)
        world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    meta = (await generate(world, session_id="s"))["meta_info"]
    assert (meta["prompt_tokens"], meta["cached_tokens"]) == (100, 90)


async def test_a_request_can_be_aborted_by_its_rid(world: World) -> None:
    counts: list[int] = []

    def answer(_: Any) -> None:
        counts.extend(world.state.manager.abort(name, aborted(), owner=None) for name in ("other", "b"))

    world.engine.answer = answer
    reply = await world.client.post("/generate", json={"text": ["x", "y"], "rid": ["a", "b"]})
    assert reply.json()["error"]["code"] == "aborted"
    assert sum(counts) == 1, "the batch is one request, whichever of its names is used"
    assert {abort.reason for abort in world.engine.aborts} == {"aborted"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None}, "text"),
        ({"input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text"),
        ({"text": 5}, "text"),
        ({"text": None, "input_ids": []}, "input_ids"),
        ({"text": None, "input_ids": [[1], []]}, "input_ids"),
        ({"text": None, "input_ids": [1, "a"]}, "input_ids"),
        ({"text": None, "input_ids": [1, [2]]}, "input_ids"),
        ({"text": None, "input_ids": [99999]}, "input_ids"),
        ({"sampling_params": {"max_tokens": 5}}, "sampling_params"),
        ({"sampling_params": {"max_new_tokens": 0, "min_new_tokens": 1}}, "sampling_params.min_new_tokens"),
        ({"sampling_params": {"max_new_tokens": -2}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": 10_000}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"json_schema": '{"type": "odd"}'}}, "sampling_params.json_schema"),
        ({"sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema"),
        ({"sampling_params": {"json_schema": {}}}, "sampling_params.json_schema"),
        ({"sampling_params": {"regex": "("}}, "sampling_params.regex"),
        ({"sampling_params": {"ebnf": "no"}}, "sampling_params.ebnf"),
        ({"sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}}, "sampling_params.ebnf"),
        ({"sampling_params": {"structural_tag": "x"}}, "sampling_params.structural_tag"),
        ({"text": ["a", "b"], "sampling_params": [{"regex": "a"}, {"regex": "b"}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{}, {"regex": "b"}]}, "sampling_params"),
        ({"sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{"stop": "x"}, {}]}, "sampling_params"),
        ({"rid": ["a", "b"]}, "rid"),
        ({"text": ["a", "b"], "rid": ["a", "a"]}, "rid"),
        ({"rid": 5}, "rid"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 3}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 0, "session_id": "s"}, "logprob_start_len"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num"),
        ({"return_logprob": [True, False]}, "return_logprob"),
        ({"token_ids_logprob": [1]}, "token_ids_logprob"),
        ({"image_data": "x"}, "image_data"),
        ({"lora_path": "x"}, "lora_path"),
        ({"session_id": "s", "session_params": {"id": "s"}}, "session_params"),
        ({"session_id": "s", "text": ["a", "b"]}, "text"),
        ({"session_id": "s", "sampling_params": {"n": 2}}, "sampling_params.n"),
    ],
)
async def test_a_bad_value_is_refused(world: World, fields: dict[str, Any], param: str | None) -> None:
    reply = await world.client.post("/generate", json={"text": "hi", **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert world.engine.requests == []


@pytest.mark.parametrize(
    "constraint",
    [{"json_schema": '{"const": "yes"}'}, {"regex": '"yes"'}, {"ebnf": 'root ::= "\\"yes\\""'}, {"regex": None}],
)
async def test_a_constraint_reaches_the_engine(world: World, constraint: dict[str, str]) -> None:
    both = [{"max_new_tokens": 5, **constraint}, {"max_new_tokens": 6, **constraint}]
    reply = await world.client.post("/generate", json={"text": ["a", "b"], "sampling_params": both})
    assert reply.status_code == 200, reply.text
    one, other = (request.grammar for request in world.engine.requests)
    assert one == other
    assert not one if constraint == {"regex": None} else matches(one, '"yes"') and not matches(one, '"no"')
