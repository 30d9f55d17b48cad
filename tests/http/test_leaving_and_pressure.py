"""Disconnects, keep-alive comments, and requests that outgrow the pool."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from .audit import LIMIT_S, send, within

ENDLESS = {"prompt": "tide", "max_tokens": 900, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_ends_running_and_waiting_work(slow_api: Any, stream: bool) -> None:
    connections = [send(slow_api.url, {**ENDLESS, "stream": stream, "n": 2}) for _ in range(3)]
    within(10, lambda: slow_api.metric("num_running_reqs") > 0)
    before = slow_api.metric("num_aborted_requests_total")
    for connection in connections:
        connection.close()
    within(LIMIT_S, lambda: slow_api.load() == 0)
    assert slow_api.metric("num_aborted_requests_total") == before + 6
    tokens = slow_api.metric("generation_tokens_total")
    assert slow_api.complete("x", max_tokens=1)["usage"]["completion_tokens"] == 1
    within(LIMIT_S, lambda: slow_api.metric("generation_tokens_total") == tokens + 1)


def test_a_disconnect_at_any_moment_releases_everything(slow_api: Any) -> None:
    for round_number in range(40):
        connection = send(slow_api.url, {**ENDLESS, "stream": round_number % 2 == 0})
        if round_number % 4 == 0:
            connection.recv(4096)
        connection.close()
    assert slow_api.complete("x", max_tokens=1)
    within(LIMIT_S, lambda: slow_api.load() == 0)
    capacity = slow_api.metric("max_total_num_tokens")
    assert slow_api.metric("kv_available_tokens") + slow_api.metric("kv_evictable_tokens") == capacity


def test_a_long_prefill_sends_keep_alive_comments(slow_api: Any) -> None:
    body = {"prompt": "y" * 600, "max_tokens": 3, "ignore_eos": True, "stream": True}
    with slow_api.http.stream("POST", "/v1/completions", json=body) as reply:
        text = "".join(reply.iter_text())
    assert text.startswith(": keep-alive\n\n")
    assert text.endswith("data: [DONE]\n\n")
    messages = [{"role": "user", "content": "z" * 600}]
    chunks = slow_api.openai.chat.completions.create(model="sim", messages=messages, max_tokens=3, stream=True)
    assert sum(len(chunk.choices[0].delta.content or "") for chunk in chunks) <= 3


def test_a_request_that_outgrows_the_pool_fails_and_others_finish(slow_api: Any) -> None:
    too_much = {"prompt": "p" * 800, "max_tokens": 3000, "ignore_eos": True}
    with ThreadPoolExecutor(3) as pool:
        big = pool.submit(slow_api.http.post, "/v1/completions", json=too_much)
        small = [pool.submit(slow_api.complete, "q", max_tokens=20, ignore_eos=True) for _ in range(2)]
        assert [each.result()["usage"]["completion_tokens"] for each in small] == [20, 20]
        reply = big.result()
    assert reply.status_code == 500
    assert reply.headers["x-should-retry"] == "false"
    assert reply.json()["error"]["type"] == "server_error"
    assert reply.json()["error"]["code"] == "kv_cache_exhausted"
    events: list[str] = []
    with slow_api.http.stream("POST", "/v1/completions", json={**too_much, "stream": True}) as stream:
        assert stream.status_code == 200
        events = [line for line in stream.iter_lines() if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "kv_cache_exhausted"
    assert all('"finish_reason":null' in event for event in events[:-1])
    with pytest.raises(openai.APIError):
        list(
            slow_api.openai.completions.create(
                model="sim", stream=True, prompt="p" * 800, max_tokens=3000, extra_body={"ignore_eos": True}
            )
        )
    within(LIMIT_S, lambda: slow_api.load() == 0)


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_no_request(slow_api: Any) -> None:
    usable = int(slow_api.metric("max_total_num_tokens"))
    for num_tokens, status in ((usable - 1, 200), (usable, 400), (usable + 1, 400), (usable + 100, 400)):
        body = {"prompt": [65] * num_tokens, "max_tokens": 2, "ignore_eos": True}
        reply = slow_api.http.post("/v1/completions", json=body)
        assert reply.status_code == status, (num_tokens, reply.text)
        if status == 400:
            assert reply.json()["error"]["code"] == "context_length_exceeded"
            assert str(usable) in reply.json()["error"]["message"]
    assert slow_api.complete("x", max_tokens=1)


def test_health_answers_while_prompts_are_prefilled(slow_api: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(slow_api.complete, "w" * (700 + i), max_tokens=2) for i in range(6)]
        for _ in range(20):
            started = time.monotonic()
            assert httpx.get(f"{slow_api.url}/health", timeout=5).status_code == 200
            assert httpx.get(f"{slow_api.url}/ready", timeout=5).status_code == 200
            assert time.monotonic() - started < 20
        for each in work:
            each.result()
