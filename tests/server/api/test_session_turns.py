"""Session turns on the OpenAI routes: the requests to the scheduler."""

from __future__ import annotations

import pytest

from ebbtide.messages import AbortReq, GenerateReq, SessionTurn, TextBatch, TextItem
from ebbtide.tokenization.vocabulary import SIM_ASSISTANT, SIM_EOS, SIM_SYSTEM, SIM_USER

from ..conftest import World

pytestmark = pytest.mark.anyio
HI = [SIM_USER, *b"hi", SIM_EOS, SIM_ASSISTANT]


async def test_a_chat_turn_is_sent_as_a_first_and_as_a_later_turn(world: World) -> None:
    assert (await world.chat(session_id="s")).status_code == 200
    [request] = world.engine.requests
    assert request.prompt == HI
    assert request.session == SessionTurn("s", continuation=[SIM_EOS, *HI], head=1, context_limit=True)


async def test_a_completion_turn_is_the_new_text_alone(world: World) -> None:
    assert (await world.complete(session_id="s", prompt="hi")).status_code == 200
    assert (await world.complete(session_id="s", prompt=[1, 2], max_tokens=5)).status_code == 200
    text, ids = world.engine.requests
    assert text.session == SessionTurn("s", continuation=[*b"hi"], context_limit=True)
    assert text.sampling.max_tokens == 16
    assert (ids.prompt, ids.session) == ([1, 2], SessionTurn("s", continuation=[1, 2]))


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_from_the_client_is_not_the_limit_of_the_context(world: World, limit: str) -> None:
    await world.chat(session_id="s", **{limit: 7})
    [request] = world.engine.requests
    assert (request.sampling.max_tokens, request.session.context_limit) == (7, False)


async def test_messages_that_are_allowed_only_in_the_first_turn_are_refused_with_the_reason(world: World) -> None:
    messages = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    assert (await world.chat(session_id="s", messages=messages)).status_code == 200
    session = world.engine.requests[0].session
    assert session.continuation == []
    assert "only the new messages" in session.refusal


async def test_a_system_message_may_come_later(world: World) -> None:
    await world.chat(session_id="s", messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}])
    assert world.engine.requests[0].session.continuation == [SIM_EOS, SIM_SYSTEM, *b"x", SIM_EOS, *HI]


async def test_sglangs_form_names_a_session_too(world: World) -> None:
    params = {"id": "s", "rid": "r1", "offset": 3, "replace": True, "drop_previous_output": True}
    assert (await world.complete(session_params=params)).status_code == 200
    assert (await world.complete(session_params={"id": "s", "rid": None, "offset": 0})).status_code == 200
    full, bare = (request.session for request in world.engine.requests)
    assert (full.session_id, full.parent, full.offset) == ("s", "r1", 3)
    assert (full.replace, full.drop_previous_output) == (True, True)
    assert (bare.parent, bare.offset, bare.replace, bare.drop_previous_output) == ("", -1, False, False)


async def test_the_affinity_header_opens_no_session(world: World) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    reply = await world.client.post("/v1/chat/completions", json=body, headers={"X-Session-ID": "s"})
    assert reply.status_code == 200
    assert world.engine.requests[0].session is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"session_id": "s", "n": 2}, "n"),
        ({"session_id": "s", "session_params": {"id": "s"}}, "session_params"),
        ({"session_params": {"offset": 1}}, "session_params"),
        ({"session_params": {"id": "s", "rid": "x" * 129}}, "session_params.rid"),
        ({"session_params": {"id": "s", "offset": -2}}, "session_params.offset"),
        ({"session_params": "s"}, "session_params"),
    ],
)
async def test_an_impossible_turn_is_refused_on_both_routes(
    world: World, fields: dict[str, object], param: str
) -> None:
    for reply in (await world.chat(**fields), await world.complete(**fields)):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert world.engine.requests == []


async def test_a_turn_has_one_prompt(world: World) -> None:
    assert (await world.complete(session_id="s", prompt=["a", "b"])).status_code == 400


async def test_usage_counts_the_whole_context(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        item = TextItem(request.rids[0], "x", [1], 1, finish="stop", cached_tokens=90, prompt_tokens=100)
        world.state.manager.handle(TextBatch([item]))

    world.engine.answer = answer
    for reply in (await world.chat(session_id="s"), await world.complete(session_id="s")):
        usage = reply.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 1, 101)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 90}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_turn_is_a_plain_error_also_of_a_stream(world: World, stream: bool) -> None:
    def refuse(request: GenerateReq) -> None:
        abort = AbortReq(request.rids[0], "session", 409, "session_busy", "A turn of this session runs.")
        world.state.manager.handle(abort)

    world.engine.answer = refuse
    reply = await world.chat(session_id="s", stream=stream)
    assert (reply.status_code, reply.headers["x-should-retry"]) == (409, "false")
    assert reply.json()["error"]["code"] == "session_busy"


async def test_prompt_token_ids_of_a_turn_are_omitted(world: World) -> None:
    """The front process knows only the new part of the prompt."""
    for reply in (
        await world.chat(session_id="s", return_token_ids=True),
        await world.complete(session_id="s", return_token_ids=True),
    ):
        body = reply.json()
        assert "prompt_token_ids" not in {**body, **body["choices"][0]}
        assert body["choices"][0]["token_ids"] == list(b"Hello!")


@pytest.mark.parametrize(
    ("fields", "param"), [({"prompt_logprobs": 1}, "prompt_logprobs"), ({"max_tokens": 0}, "max_tokens")]
)
async def test_prompt_logprobs_cannot_be_combined_with_a_turn(world: World, fields: dict[str, int], param: str) -> None:
    for reply in (await world.chat(session_id="s", **fields), await world.complete(session_id="s", **fields)):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"model": "org/sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
    ],
)
async def test_routes_without_sessions_refuse_the_session_field(
    world: World, path: str, body: dict[str, object]
) -> None:
    """Ignoring the field would generate without the earlier conversation."""
    assert (await world.client.post(path, json=body)).status_code == 200
    reply = await world.client.post(path, json={**body, "session_id": "s"})
    assert (reply.status_code, "session_id" in reply.json()["error"]["message"]) == (400, True)
