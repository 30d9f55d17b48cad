"""Invalid requests are refused, and no part of them reaches the scheduler."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from ebbtide.tokenization.tokenizer import RESERVED_VARIABLES

from ..conftest import World

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
HI = '"messages":[{"role":"user","content":"hi"}]'
JSON = {"content-type": "application/json"}
NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]


def check_refused(reply: Any, param: str | None = None, *, status: int = 400) -> None:
    """Assert that the reply is a complete error object."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, 2.1, "0.7", True, [], {}, 1e308]),
        ("top_p", [-0.1, 1.1, "1", True]),
        ("min_p", [-0.1, 1.1, True]),
        ("top_k", [-2, 1.5, "3", True]),
        ("presence_penalty", [-2.1, 2.1, "0"]),
        ("frequency_penalty", [-2.1, 2.1, True]),
        ("repetition_penalty", [0, -1, 5e-324, 0.0009, 2.1]),
        ("n", [0, -1, 129, 10**4, 10**9, 1.5, "2", True]),
        ("seed", [2**63, -(2**63) - 1, 1.5, "1"]),
        ("max_tokens", [0, -2, 1.5, "10", True]),
        ("max_completion_tokens", [0, -2, 1.5, "10", True]),
        ("min_tokens", [-1, 1.5, 10**9]),
        ("stop", [{}, ["x"] * 17, [str(i) for i in range(500)], "x" * 5000]),
        ("stop_token_ids", [[260], [99999999]]),
        ("logit_bias", [{"260": 1}, {"-1": 1}, {"1000000000000": 1}, {"abc": 1}, {"1.5": 1}, {"": 1}, {"²": 1}]),
        ("top_logprobs", [1, 5]),
        ("stream_options", [[], {"include_usage": True}]),
        ("priority", [101, -101, 1.5]),
        ("cache_salt", ["x" * 300, 5]),
        ("messages", [[], None, {}, "hi"]),
        ("reasoning_effort", ["extreme"]),
        ("continue_final_message", ["yes"]),
        ("chat_template_kwargs", [{name: "x"} for name in sorted(RESERVED_VARIABLES)]),
        ("chat_template", ["{{ 1 }}"]),
        ("tools", ["x", {}]),
        ("tool_choice", ["required", "any", 3, {"type": "function", "function": {"name": "f"}}]),
        ("parallel_tool_calls", ["no", 0]),
        ("functions", [[{"name": "f"}]]),
        ("function_call", ["f", {"name": "f"}]),
        ("response_format", [{"type": "json_schema"}, {"type": "grammar"}, []]),
        ("guided_json", [{"type": "object"}]),
        ("regex", ["(unclosed"]),
        ("session_id", [5, ["s"]]),
        ("prompt_logprobs", [-1, 21, 10**6, True, "1", 1.5]),
        ("return_token_ids", [1, "yes"]),
        ("return_tokens_as_token_ids", [0, []]),
        ("echo", [True]),
        ("truncate_prompt_tokens", [0, 5]),
        ("documents", [[{"text": "x"}]]),
        ("prompt_embeds", ["AAAA"]),
        ("logits_processors", [["x"]]),
        ("custom_logit_processor", ["x"]),
        ("return_hidden_states", [True]),
        ("web_search_options", [{}]),
        ("thinking_token_budget", [0, 5]),
        ("min_new_tokens", [5]),
    ],
)
async def test_a_bad_value_is_refused_by_name(world: World, field: str, values: list[Any]) -> None:
    for value in values:
        check_refused(await world.chat(**{field: value}), field)
    assert world.engine.requests == []


@pytest.mark.parametrize("value", [21, 10**6, -1, True, 2.5])
async def test_more_alternatives_than_allowed_are_refused(world: World, value: Any) -> None:
    check_refused(await world.chat(logprobs=True, top_logprobs=value), "top_logprobs")
    check_refused(await world.complete(logprobs=value), "logprobs")


async def test_the_limits_of_each_range_are_accepted(world: World) -> None:
    edges: list[dict[str, Any]] = [
        {"temperature": 2, "top_p": 1, "min_p": 1, "repetition_penalty": 2},
        {"temperature": 0, "top_p": 0, "min_p": 0, "top_k": -1},
        {"top_k": 0, "n": 8, "seed": 2**63 - 1},
        {"logit_bias": {"259": 100, "0": -100}, "stop_token_ids": [259]},
        {"logprobs": True, "top_logprobs": 20},
        {"stop": [str(i) for i in range(16)]},
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {"unknown_field": {"a": [1]}, "user": "u", "store": False, "metadata": {}},
    ]
    for fields in edges:
        assert (await world.chat(**fields)).status_code == 200, fields
    assert world.engine.requests[1].sampling.top_p > 0


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}],
        [{"type": "input_audio", "input_audio": {}}],
        [{"type": "text"}],
        [{"text": "no type"}],
        5,
        ["plain"],
    ],
)
async def test_content_other_than_text_is_refused(world: World, content: Any) -> None:
    check_refused(await world.chat(messages=[{"role": "user", "content": content}]))


@pytest.mark.parametrize("role", ["", "root", "User", None, 1])
async def test_an_unknown_role_is_refused(world: World, role: Any) -> None:
    check_refused(await world.chat(messages=[{"role": role, "content": "hi"}]), "messages[0].role")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
async def test_values_that_are_not_finite_numbers_are_refused(world: World, literal: str) -> None:
    for name in [*NUMBERS, "unknown_field"]:
        check_refused(await world.client.post(CHAT, content=f'{{{HI},"{name}":{literal}}}', headers=JSON))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{bad",
        b"[]",
        b"null",
        b'"text"',
        b"{" + HI.encode() + b"} trailing",
        b"{" + HI.encode() + b',"n":1,"n":2}',
        b"{" + HI.encode() + b',"metadata":{"a":1,"a":1}}',
        b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\\udc00\\ud800"}]}',
        b"{" + HI.encode() + b',"stop":"\\ud800"}',
        b"{" + HI.encode() + b',"\\udfff":1}',
        b"{" + HI.encode() + b',"n":' + b"9" * 10_000 + b"}",
    ],
)
async def test_a_body_that_is_not_strict_json_is_refused(world: World, body: bytes) -> None:
    check_refused(await world.client.post(CHAT, content=body, headers=JSON))
    assert world.engine.requests == []


@pytest.mark.parametrize("text", ["\0", "\ufffe", "\u2028", "a" + "\u0301" * 50, "\U0001f600"])
async def test_unusual_but_valid_text_is_accepted_unchanged(world: World, text: str) -> None:
    assert (await world.complete(prompt=text)).status_code == 200
    assert world.engine.requests[0].prompt == list(text.encode())


@pytest.mark.parametrize("depth", [129, 1000, 20_000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
async def test_deep_nesting_is_refused_quickly(world: World, depth: int, pair: str) -> None:
    opening = "[" if pair == "[]" else '{"a":'
    value = opening * depth + "1" + pair[1] * depth
    start = time.monotonic()
    check_refused(await world.client.post(CHAT, content=f'{{{HI},"x":{value}}}', headers=JSON))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("prompt", ["[1" + ",1" * 500_001 + "]", "[[1]" + ",[1]" * 500_001 + "]"])
async def test_more_elements_than_any_prompt_has_are_refused_unparsed(world: World, prompt: str) -> None:
    reply = await world.client.post(CHAT, content=f'{{{HI},"x":{prompt}}}', headers=JSON)
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "request_too_large"


async def test_nesting_within_the_limit_is_accepted(world: World) -> None:
    value = "[" * 120 + "]" * 120
    reply = await world.client.post(CHAT, content=f'{{{HI},"x":{value}}}', headers=JSON)
    assert reply.status_code == 200


async def test_the_context_limit_is_exact_and_named(world: World) -> None:
    assert (await world.complete(prompt=[1] * 200, max_tokens=312)).status_code == 200
    reply = await world.complete(prompt=[1] * 200, max_tokens=313)
    check_refused(reply, "max_tokens")
    check_refused(await world.chat(max_completion_tokens=9999), "max_completion_tokens")
    check_refused(await world.complete(prompt=[1] * 513, max_tokens=1))
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert "512" in reply.json()["error"]["message"]


async def test_the_pool_limit_is_exact_and_named(world: World) -> None:
    # 16 pages of 16 tokens; the KV of the last token is never written.
    assert (await world.complete(prompt=[1] * 255, max_tokens=200)).status_code == 200
    assert (await world.complete(prompt=[1] * 256, max_tokens=1)).status_code == 200
    reply = await world.complete(prompt=[1] * 256, max_tokens=2)
    check_refused(reply)
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert "256" in reply.json()["error"]["message"]


async def test_a_text_far_beyond_the_context_is_not_tokenised(world: World) -> None:
    reply = await world.complete(prompt="x" * 50_000)
    check_refused(reply, "prompt")
    assert reply.json()["error"]["code"] == "context_length_exceeded"


async def test_n_times_prompts_has_a_limit(world: World) -> None:
    check_refused(await world.complete(prompt=[[1]] * 64, n=64), "n")
    assert world.engine.requests == []


async def test_a_missing_field_is_named(world: World) -> None:
    check_refused(await world.client.post(CHAT, json={}), "messages")
    check_refused(await world.client.post("/v1/completions", json={}), "prompt")
    check_refused(await world.chat(messages=[{"content": "hi"}]), "messages[0]")
    check_refused(
        await world.chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"
    )


async def test_a_compressed_body_is_refused_with_that_reason(world: World) -> None:
    for coding in ("gzip", "br", "gzip, identity"):
        reply = await world.client.post(CHAT, content=b"\x1f\x8b", headers=JSON | {"content-encoding": coding})
        assert reply.status_code == 415
        assert coding in reply.json()["error"]["message"]
    assert (
        await world.client.post(CHAT, content=f"{{{HI}}}", headers=JSON | {"content-encoding": "identity"})
    ).is_success


async def test_min_tokens_must_not_exceed_max_tokens(world: World) -> None:
    check_refused(await world.chat(min_tokens=5, max_tokens=4), "min_tokens")


async def test_continuing_needs_an_assistant_message(world: World) -> None:
    check_refused(await world.chat(continue_final_message=True), "messages")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    check_refused(await world.chat(**both), "continue_final_message")


async def test_refused_requests_leave_nothing_behind(world: World) -> None:
    for _ in range(100):
        await world.chat(n=0)
        await world.complete(prompt=[999])
    assert world.state.manager.num_open == 0
    assert (await world.chat()).status_code == 200


async def test_errors_do_not_repeat_a_large_input(world: World) -> None:
    value = json.dumps("y" * 50_000)
    reply = await world.client.post(CHAT, content=f'{{{HI},"temperature":{value}}}', headers=JSON)
    check_refused(reply, "temperature")
    assert len(reply.content) < 1000
    reply = await world.chat(model="z" * 50_000)
    assert reply.status_code == 404
    assert len(reply.content) < 1000
