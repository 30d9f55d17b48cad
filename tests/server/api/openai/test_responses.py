"""POST /v1/responses, and the routes for stored responses, which do not exist."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ebbtide.config import ServerConfig
from ebbtide.server.parsers.chat_template_profile import ChatTemplateProfile
from ebbtide.server.parsers.reasoning import REASONING

from ...conftest import LARGE_INFO, World
from ...typed_events import CALL, REPLIES, TypedRoute, typed_events

pytestmark = pytest.mark.anyio

RUNNER_INFO = LARGE_INFO
PROFILE = ChatTemplateProfile(reasoning=REASONING["think"])
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


ROUTE = TypedRoute("/v1/responses", {"input": "hi"})
ask, whole, streamed = ROUTE.ask, ROUTE.whole, ROUTE.streamed


def prompt_of(world: World) -> str:
    return bytes(token for token in world.engine.requests[-1].prompt if token < 256).decode()


def without_ids(value: Any) -> Any:
    """Return ``value`` without the parts that differ between responses."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in ("id", "call_id", "created_at", "completed_at")}
    return [without_ids(entry) for entry in value] if isinstance(value, list) else value


async def test_a_response_has_its_request_and_usage(world: World) -> None:
    reply = await ask(world, instructions="Be brief.", metadata={"a": "b"}, store=True, user="u", truncation="auto")
    body = reply.json()
    assert body["id"] == f"resp_{reply.headers['x-request-id']}"
    assert body["object"] == "response"
    assert body["status"] == "completed"
    assert body["completed_at"] >= body["created_at"]
    assert body["model"] == "org/sim"
    assert body["metadata"] == {"a": "b"}
    assert body["instructions"] == "Be brief."
    assert body["store"] is False
    assert body["error"] is body["incomplete_details"] is body["previous_response_id"] is None
    [message] = body["output"]
    assert message["id"].startswith("msg_")
    assert without_ids(message) == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}],
    }
    prompt_len = len(world.engine.requests[0].prompt)
    assert body["usage"] == {
        "input_tokens": prompt_len,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_len + 6,
    }
    assert prompt_of(world) == "Be brief.hi"


async def test_sampling_fields_reach_the_engine(world: World) -> None:
    await whole(world, temperature=0.5, top_p=0.25, max_output_tokens=7, seed=3, top_k=5)
    sampling = world.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.5, 0.25, 7)
    assert (sampling.seed, sampling.top_k) == (3, 5)


async def test_events_are_numbered_and_come_in_the_order_of_the_api(world: World) -> None:
    events = await streamed(world)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 6,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[0]["response"]["usage"] is None
    assert events[2]["item"]["content"] == []
    item = events[-2]["item"]
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert {event["output_index"] for event in events[2:-1]} == {0}
    assert "".join(event["delta"] for event in events if "delta" in event) == "Hello!" == events[-4]["text"]
    assert events[-1]["response"]["output"] == [item]


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("reply", [*REPLIES, f"{CALL}\n"])
async def test_the_last_event_of_a_stream_has_the_whole_answer(world: World, reply: str, finish: str) -> None:
    world.engine.reply, world.engine.finish = reply, finish
    answer = await whole(world, tools=[TOOL])
    events = await streamed(world, tools=[TOOL])
    assert without_ids(events[-1]["response"]) == without_ids(answer)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    for index, item in enumerate(done):
        joined = "".join(e["delta"] for e in events if "delta" in e and e["output_index"] == index)
        assert joined == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


async def test_reasoning_and_calls_are_items_of_their_own(world: World) -> None:
    world.engine.reply = f"<think>why</think>Look.\n{CALL}"
    body = await whole(world, tools=[TOOL])
    reasoning, message, call = body["output"]
    assert reasoning["id"].startswith("rs_")
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "why"}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"].startswith("Look.")
    assert call["id"].startswith("fc_")
    assert call["call_id"].startswith("call_")
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Zürich 👩‍👩‍👧"})
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert body["tools"] == [TOOL]


async def test_an_answer_without_text_still_has_a_message(world: World) -> None:
    world.engine.answer = lambda request: world.engine.emit(request.rids[0], "", 1, finish="stop")
    assert (await whole(world))["output"][0]["content"][0]["text"] == ""
    assert "response.output_item.done" in [event["type"] for event in await streamed(world)]


async def test_an_answer_that_is_cut_is_incomplete(world: World) -> None:
    world.engine.finish = "length"
    body = await whole(world)
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][0]["status"] == "incomplete"
    assert body["completed_at"] is None
    assert (await streamed(world))[-1]["type"] == "response.incomplete"


async def test_logprobs_are_sent_with_their_text(world: World) -> None:
    include = ["message.output_text.logprobs"]
    body = await whole(world, include=include, top_logprobs=2)
    entries = body["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == list("Hello!")
    assert all(set(entry) == {"token", "bytes", "logprob", "top_logprobs"} for entry in entries)
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    events = await streamed(world, include=include, top_logprobs=2)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == entries
    assert next(e for e in events if e["type"] == "response.output_text.done")["logprobs"] == entries
    assert next(e for e in events if e["type"] == "response.content_part.added")["part"]["logprobs"] == []


async def test_logprobs_of_reasoning_are_not_the_texts(world: World) -> None:
    world.engine.reply = "<think>why</think>yes"
    body = await whole(world, top_logprobs=1)
    assert "".join(entry["token"] for entry in body["output"][1]["content"][0]["logprobs"]).endswith("yes")
    assert "logprobs" not in body["output"][0]["content"][0]


async def test_an_error_in_a_stream_is_a_failed_response(world: World) -> None:
    world.engine.answer = world.engine.abort_after_a_token
    events = await streamed(world)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed = events[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "kv_cache_exhausted", "message": "no room"}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert failed["response"]["output"][0]["content"][0]["text"] == "x"


class TestSilentBefore:
    """A stream whose status line was sent with a keep-alive."""

    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(keep_alive_s=0.01)

    async def test_a_failed_response_is_announced_first(self, world: World) -> None:
        def fail(request: Any) -> None:
            rid = request.rids[0]
            asyncio.get_running_loop().call_later(0.2, lambda: world.engine.abort(rid))

        world.engine.answer = fail
        reply = await ask(world, stream=True)
        assert reply.text.startswith(": keep-alive\n\n")
        kinds = [event["type"] for event in typed_events(reply.text)]
        assert kinds == ["response.created", "response.in_progress", "response.failed"]


async def test_an_error_before_the_stream_is_a_plain_one(world: World) -> None:
    world.engine.answer = lambda request: world.engine.abort(request.rids[0])
    reply = await ask(world, stream=True)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "kv_cache_exhausted"


async def test_a_json_schema_becomes_a_grammar(world: World) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    body = await whole(world, text={"format": form, "verbosity": "low"})
    assert world.engine.requests[0].grammar
    assert body["text"] == {"format": form}
    await whole(world, text={"format": {"type": "json_object"}})
    assert world.engine.requests[1].grammar
    await whole(world, text={"format": {"type": "text"}})
    assert not world.engine.requests[2].grammar


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_required_call_is_forced_by_a_grammar(world: World, choice: Any) -> None:
    body = await whole(world, tools=[TOOL], tool_choice=choice)
    assert body["tool_choice"] == choice
    assert world.engine.requests[0].grammar


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, 404, "previous_response_id", "previous_response_not_found"),
        ({"background": True}, 400, "background", None),
        ({"model": "other"}, 404, "model", "model_not_found"),
        ({"input": ""}, 400, "input", None),
        ({"input": []}, 400, "input", None),
        ({"input": 5}, 400, "input", None),
        ({"input": [{"type": "item_reference", "id": "m"}]}, 400, "input[0].type", None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0].content[0]", None),
        ({"max_output_tokens": 0}, 400, "max_output_tokens", None),
        ({"max_output_tokens": 10_000}, 400, "max_output_tokens", "context_length_exceeded"),
        ({"temperature": 2.5}, 400, "temperature", None),
        ({"top_logprobs": 21}, 400, "top_logprobs", None),
        ({"include": ["nothing"]}, 400, "include[0]", None),
        ({"tools": [{"type": "web_search"}, {"type": "custom"}]}, 400, "tools[1].name", None),
        ({"tools": [{"type": "web_search"}, {**TOOL, "name": "a b"}]}, 400, "tools[1]", None),
        ({"tools": [{"type": "function", "name": 5}]}, 400, "tools[0].name", None),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
            400,
            "tools[0].tools[0].name",
            None,
        ),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].name", None),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, 400, "tool_choice", None),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, 400, "tool_choice", None),
        ({"reasoning": {"effort": "much"}}, 400, "reasoning", None),
        ({"text": {"format": {"type": "xml"}}}, 400, "text.format.type", None),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, 400, "text", None),
        ({"stream_options": {"include_obfuscation": True}}, 400, "stream_options", None),
        ({"stop": ["x"]}, 400, "stop", None),
        ({"messages": [{"role": "user", "content": "hi"}]}, 400, "messages", None),
        ({"conversation": "conv_1"}, 400, "conversation", None),
    ],
)
async def test_unsupported_requests_are_refused_under_the_clients_field_names(
    world: World, fields: dict[str, Any], status: int, param: str | None, code: str | None
) -> None:
    reply = await ask(world, **fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (status, param, code), error
    assert not world.engine.requests
    for name in ("messages", "reasoning_effort", "response_format", "'max_tokens'"):
        assert name not in error["message"] or name in fields


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/responses/resp_1"), ("DELETE", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel")],
)
async def test_no_response_is_ever_found(world: World, method: str, path: str) -> None:
    reply = await world.client.request(method, path)
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("not_found_error", "response_not_found")
    assert "'resp_1'" in error["message"]


async def test_a_request_can_be_ended_by_the_id_of_its_response(world: World) -> None:
    world.engine.held = True
    pending = asyncio.ensure_future(ask(world, rid="mine"))
    while not world.engine.requests:
        await asyncio.sleep(0)
    reply = await world.client.post("/abort_request", json={"rid": "resp_mine"})
    assert reply.json() == {"num_aborted": 1}
    assert (await pending).json()["error"]["code"] == "aborted"
