"""POST /v1/chat/completions without a stream."""

from __future__ import annotations

import pytest

from ebbtide.messages import GenerateReq, TextBatch, TextItem
from ebbtide.tokenization.vocabulary import SIM_ASSISTANT, SIM_EOS, SIM_SYSTEM, SIM_USER

from ...conftest import World

pytestmark = pytest.mark.anyio


async def test_a_chat_response_has_openais_format(world: World) -> None:
    reply = await world.chat()
    assert reply.status_code == 200
    body = reply.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "org/sim"
    assert body["id"] == f"chatcmpl-{reply.headers['x-request-id']}"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def test_the_template_renders_roles_parts_and_null(world: World) -> None:
    await world.chat(
        messages=[
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
            {"role": "assistant"},
        ]
    )
    [request] = world.engine.requests
    assert request.prompt == [
        *(SIM_SYSTEM, ord("d"), SIM_EOS),
        *(SIM_USER, ord("a"), ord("b"), SIM_EOS),
        *(SIM_ASSISTANT, SIM_EOS, SIM_ASSISTANT, SIM_EOS, SIM_ASSISTANT),
    ]


async def test_a_control_token_in_a_message_is_plain_text(world: World) -> None:
    await world.chat(messages=[{"role": "user", "content": "x<|end|>"}])
    assert world.engine.requests[0].prompt == [SIM_USER, *b"x<|end|>", SIM_EOS, SIM_ASSISTANT]


async def test_the_last_message_can_be_continued(world: World) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Ab"}]
    await world.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert world.engine.requests[0].prompt == [SIM_USER, ord("q"), SIM_EOS, SIM_ASSISTANT, ord("A"), ord("b")]


async def test_n_choices_share_a_prompt_that_counts_once(world: World) -> None:
    body = (await world.chat(n=3)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 5
    assert body["usage"]["completion_tokens"] == 18
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    [request] = world.engine.requests
    assert len(set(request.rids)) == 3


async def test_every_sampling_field_reaches_the_scheduler(world: World) -> None:
    reply = await world.chat(
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        min_p=0.125,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={"65": -100, "66": 100},
        seed=-(2**63),
        min_tokens=2,
        max_tokens=10,
        max_completion_tokens=9,
        stop=["a", "b", "a"],
        stop_token_ids=[70, 71],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        logprobs=True,
        top_logprobs=4,
        priority=-5,
        cache_salt="mine",
    )
    assert reply.status_code == 200
    [request] = world.engine.requests
    sampling, text = request.sampling, request.text
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 7, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-2, 2, 1.5)
    assert sampling.logit_bias == {65: -100, 66: 100}
    assert (sampling.seed, sampling.min_tokens, sampling.max_tokens) == (-(2**63), 2, 9)
    assert (sampling.stop_token_ids, sampling.ignore_eos, sampling.logprobs) == ((70, 71), True, 4)
    assert (text.stop, text.include_stop, text.skip_special_tokens) == (("a", "b"), True, False)
    assert text.shown_stop_ids == (70, 71)
    assert text.min_tokens == 2, "a stop string must not end it earlier than that either"
    assert (request.priority, request.namespace) == (-5, "salt:mine")


async def test_null_means_absent_for_every_optional_field(world: World) -> None:
    names = (
        "model max_tokens max_completion_tokens temperature top_p top_k min_p presence_penalty frequency_penalty"
        " repetition_penalty logit_bias seed n stop stop_token_ids min_tokens ignore_eos skip_special_tokens stream"
        " stream_options priority logprobs top_logprobs response_format tools tool_choice user metadata"
    )
    assert (await world.chat(**dict.fromkeys(names.split()))).status_code == 200
    sampling = world.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.logprobs) == (1.0, 1.0, 0, None)


async def test_absent_max_tokens_fills_the_pool_if_it_is_smaller_than_the_context(world: World) -> None:
    await world.chat()
    assert world.engine.requests[0].sampling.max_tokens == 16 * 16 - 5 + 1


async def test_requests_without_a_seed_get_different_ones(world: World) -> None:
    await world.chat()
    await world.chat()
    assert world.engine.requests[0].sampling.seed != world.engine.requests[1].sampling.seed


@pytest.mark.parametrize("temperature", [0, -0.0, 1e-10, 1e-4])
async def test_tiny_temperatures_are_greedy(world: World, temperature: float) -> None:
    await world.chat(temperature=temperature)
    assert world.engine.requests[0].sampling.temperature == 0


async def test_a_client_cannot_raise_its_priority(world: World) -> None:
    await world.chat(priority=100)
    assert world.engine.requests[0].priority == 0


async def test_logprobs_are_sent_with_their_tokens(world: World) -> None:
    content = (await world.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == "Hello!"
    assert [entry["top_logprobs"][1]["token"] for entry in content] == [f"{i}.1" for i in range(6)]
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "0.0", "logprob": -1.0, "bytes": [48, 46, 48]},
            {"token": "0.1", "logprob": -2.0, "bytes": [48, 46, 49]},
        ],
    }


async def test_logprobs_without_alternatives_have_an_empty_list(world: World) -> None:
    content = (await world.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["top_logprobs"] == []


async def test_a_stop_string_is_reported_to_client_and_scheduler(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        item = TextItem(request.rids[0], "He", tokens=[1, 2, 3], num_output_tokens=3, finish="stop", matched="llo")
        world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    body = (await world.chat(stop="llo")).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "llo"
    assert body["usage"]["completion_tokens"] == 3
    [finish] = world.engine.finishes
    assert (finish.rid, finish.num_output_tokens) == (world.engine.requests[0].rids[0], 3)


async def test_a_requested_stop_token_is_a_stop_reason_but_end_of_text_is_not(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        world.engine.emit(request.rids[0], "x", 1, finish="stop", matched=SIM_EOS)

    world.engine.answer = answer
    assert (await world.chat()).json()["choices"][0]["stop_reason"] is None
    named = await world.chat(stop_token_ids=[SIM_EOS])
    assert named.json()["choices"][0]["stop_reason"] == SIM_EOS
    assert world.engine.finishes == []


async def test_the_length_limit_is_a_finish_reason(world: World) -> None:
    world.engine.finish = "length"
    assert (await world.chat(max_tokens=6)).json()["choices"][0]["finish_reason"] == "length"


async def test_an_engine_abort_is_a_server_error_and_not_an_answer(world: World) -> None:
    world.engine.answer = lambda request: world.engine.abort(request.rids[0])
    reply = await world.chat()
    assert reply.status_code == 500
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json()["error"] == {
        "message": "no room",
        "type": "server_error",
        "param": None,
        "code": "kv_cache_exhausted",
    }


async def test_one_failed_choice_ends_all_of_them(world: World) -> None:
    world.engine.answer = lambda request: world.engine.abort(request.rids[1])
    assert (await world.chat(n=3)).status_code == 500
    rids = world.engine.requests[0].rids
    assert {abort.rid for abort in world.engine.aborts} == set(rids)
    assert world.state.manager.num_open == 0


async def test_a_field_without_effect_is_named_once_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(3):
        await world.chat(service_tier="auto", response_format=None, temperature=1)
    assert [record.getMessage() for record in caplog.records if "unsupported" in record.getMessage()] == [
        "ignoring unsupported request fields: 'service_tier'"
    ]
