"""Server-sent events of both OpenAI routes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ebbtide.config import ServerConfig
from ebbtide.messages import GenerateReq, PressureUsage, TextBatch, TextItem

from ..conftest import World

pytestmark = pytest.mark.anyio


def events(text: str) -> list[Any]:
    """Return the JSON of every event and the string "[DONE]", without comments."""
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        assert "\n" not in block, "an event is one line"
        if not block.startswith(":"):
            assert block.startswith("data: ")
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def test_a_chat_stream_has_role_text_finish_and_end_marker(world: World) -> None:
    reply = await world.chat(stream=True)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    *chunks, end = events(reply.text)
    assert end == "[DONE]"
    assert {(chunk["id"], chunk["object"], chunk["model"], chunk["created"]) for chunk in chunks} == {
        (f"chatcmpl-{reply.headers['x-request-id']}", "chat.completion.chunk", "org/sim", chunks[0]["created"])
    }
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello!"
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


async def test_choice_zero_is_announced_first_even_if_another_has_the_first_token(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        for rid in reversed(request.rids):
            world.engine.emit(rid, "x", 1, finish="length")

    world.engine.answer = answer
    *chunks, _ = events((await world.chat(stream=True, n=3)).text)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]


@pytest.mark.parametrize("route", ["chat", "complete"])
@pytest.mark.parametrize("n", [1, 2])
async def test_the_usage_chunk_is_the_last_and_equals_the_whole_answers(world: World, route: str, n: int) -> None:
    send = getattr(world, route)
    *chunks, end = events((await send(stream=True, n=n, stream_options={"include_usage": True})).text)
    assert end == "[DONE]"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == (await send(n=n)).json()["usage"]
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks[:-1])


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_no_chunk_without_choices_unless_usage_was_asked_for(world: World, options: dict[str, Any]) -> None:
    *chunks, _ = events((await world.chat(stream=True, stream_options=options)).text)
    assert all(chunk["choices"] for chunk in chunks)


async def test_running_usage_is_on_every_chunk(world: World) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for send in (world.chat, world.complete):
        *chunks, _ = events((await send(stream=True, stream_options=options)).text)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == 6


async def test_a_text_stream_has_text_and_finish(world: World) -> None:
    *chunks, end = events((await world.complete(stream=True)).text)
    assert end == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"


async def test_a_text_stream_of_several_choices_begins_with_choice_zero(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        for rid in request.rids[::-1]:
            world.engine.emit(rid, "x", 1, finish="stop")

    world.engine.answer = answer
    *chunks, _ = events((await world.complete(stream=True, prompt=["a", "b"], n=2)).text)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:4]] == [0, 1, 2, 3]


async def test_streamed_logprobs_equal_the_whole_answers(world: World) -> None:
    whole = (await world.chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    *chunks, _ = events((await world.chat(stream=True, logprobs=True, top_logprobs=2)).text)
    entries = [c["choices"][0]["logprobs"]["content"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for content in entries for entry in content] == whole


async def test_line_separators_of_unicode_are_escaped(world: World) -> None:
    world.engine.reply = "a\u2028\u2029\u0085b"
    text = (await world.chat(stream=True)).text
    assert not any(separator in text for separator in "\u2028\u2029\u0085")
    *chunks, _ = events(text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == world.engine.reply


async def test_an_item_without_text_sends_no_chunk(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        world.engine.emit(request.rids[0], "", 1)
        world.engine.emit(request.rids[0], "ab", 2, finish="stop")

    world.engine.answer = answer
    *chunks, _ = events((await world.chat(stream=True)).text)
    assert len(chunks) == 3


async def test_a_refusal_before_the_first_token_is_a_plain_http_error(world: World) -> None:
    world.engine.answer = lambda request: world.engine.abort(request.rids[0])
    reply = await world.chat(stream=True)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "kv_cache_exhausted"


async def test_an_error_after_the_first_token_is_one_event_and_no_end_marker(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        rid = request.rids[0]
        world.engine.emit(rid, "He", 1)
        world.engine.abort(rid, num=2)
        world.engine.emit(rid, "l", 2, finish="abort")

    world.engine.answer = answer
    for send in (world.chat, world.complete):
        reply = await send(stream=True)
        assert reply.status_code == 200
        *chunks, error = events(reply.text)
        assert error["error"]["type"] == "server_error"
        assert error["error"]["code"] == "kv_cache_exhausted"
        assert "[DONE]" not in reply.text
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        assert '"Hel"' in reply.text, "the text so far is kept, and what the detokenizer held comes with it"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"n": 0}, 400),
        ({"model": "other"}, 404),
        ({"max_tokens": 10**9}, 400),
        ({"top_p": 2}, 400),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, 400),
    ],
)
async def test_streamed_and_non_streamed_requests_are_refused_alike(
    world: World, fields: dict[str, Any], status: int
) -> None:
    streamed, whole = await world.chat(**fields, stream=True), await world.chat(**fields)
    assert streamed.status_code == whole.status_code == status
    assert streamed.json() == whole.json()
    assert world.engine.requests == []


async def test_pressure_shows_in_the_usage_of_a_retracted_request_only(world: World) -> None:
    def answer(request: GenerateReq) -> None:
        item = TextItem(
            request.rids[0], "x", tokens=[1], num_output_tokens=1, finish="stop", pressure=PressureUsage(2, 30, 400)
        )
        world.state.manager.handle(TextBatch([item]))

    assert "ebbtide" not in (await world.chat()).json()["usage"]
    world.engine.answer = answer
    usage = (await world.chat()).json()["usage"]
    assert usage["ebbtide"] == {"num_retractions": 2, "recomputed_tokens": 30, "queue_ms": 400}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_costs_of_pressure_are_summed_over_choices_except_parallel_waiting(
    world: World, stream: bool
) -> None:
    costs = [PressureUsage(1, 10, 400), None, PressureUsage(2, 30, 700)]

    def answer(request: GenerateReq) -> None:
        world.engine.emit(request.rids[2], "x", 1, pressure=PressureUsage(1, 12, 300))
        for rid, cost in zip(request.rids, costs, strict=True):
            world.engine.emit(rid, "y", 2, finish="length", pressure=cost)

    world.engine.answer = answer
    for send in (world.chat, world.complete):
        reply = await send(n=3, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
        usage = events(reply.text)[-2]["usage"] if stream else reply.json()["usage"]
        assert usage["ebbtide"] == {"num_retractions": 3, "recomputed_tokens": 40, "queue_ms": 700}


class TestKeepAlive:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(keep_alive_s=0.01)

    async def test_silence_is_filled_with_comments_and_the_text_is_complete(self, world: World) -> None:
        later = asyncio.get_running_loop().call_later
        world.engine.answer = lambda request: later(
            0.05, lambda: world.engine.emit(request.rids[0], "late", 1, finish="stop")
        )
        reply = await world.chat(stream=True)
        assert reply.text.startswith(": keep-alive\n\n")
        assert not any(line.startswith(("id:", "retry:")) for line in reply.text.splitlines())
        *chunks, end = events(reply.text)
        assert end == "[DONE]"
        assert chunks[1]["choices"][0]["delta"]["content"] == "late"

    async def test_an_error_after_a_keep_alive_is_an_event(self, world: World) -> None:
        later = asyncio.get_running_loop().call_later
        world.engine.answer = lambda request: later(0.05, lambda: world.engine.abort(request.rids[0]))
        reply = await world.chat(stream=True)
        assert reply.status_code == 200
        [error] = events(reply.text)
        assert error["error"]["code"] == "kv_cache_exhausted"
