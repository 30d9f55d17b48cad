"""Memory exhaustion in a complete daemon: the answers to each request, /metrics and /pressure."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, cast

import httpx
import openai
import psutil
import pytest

from .audit import check_idle, check_scrape, within
from .conftest import Api

CAPACITY = 1024
# Admission reserves almost no memory, so that it admits requests that will not fit.
FLAGS = ("--max-total-tokens", str(CAPACITY), "--page-size", "16", "--sim-step-ms", "5", "--context-length", "4096")
GREEDY = {"temperature": 0, "ignore_eos": True}
BIG = {"prompt": "b" * 500, "max_tokens": 3000, **GREEDY}
BIG_OUTPUTS = CAPACITY + 1 - 500  # the K/V of the last token is never written
SHORT = {"max_tokens": 300, **GREEDY}
QUICK = {"prompt": "q" * 950, "max_tokens": 3000, **GREEDY}  # outgrows the pool soon


@pytest.fixture(scope="module")
def pressed_daemon(start_shared_daemon: Any) -> Any:
    """A daemon with a pool of 64 pages."""
    return start_shared_daemon(*FLAGS, "--schedule-conservativeness", "0.1")


@pytest.fixture(scope="module")
def pressed(pressed_daemon: Any) -> Iterator[Api]:
    """The API of ``pressed_daemon``."""
    api = Api(pressed_daemon.url)
    yield api
    api.close()


def data_of(lines: Iterator[str]) -> list[Any]:
    """The events of a stream; "[DONE]" remains a string."""
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


def check_exhausted(error: dict[str, Any]) -> None:
    """Check the error object for an answer that outgrew the pool; it names the sizes and the flag."""
    assert (error["type"], error["code"], error["param"]) == ("server_error", "kv_cache_exhausted", None)
    assert str(CAPACITY) in error["message"]
    assert "--max-total-tokens" in error["message"]


def test_a_stream_that_outgrows_the_pool_ends_alone(api: Api, pressed: Api, pressed_daemon: Any) -> None:
    before, seen = pressed.totals(), pressed.http.get("/pressure").json()["num_events_total"]
    alone = {prompt: api.complete(prompt, **SHORT)["choices"] for prompt in ("first tide", "second tide")}
    so_far = api.complete(**{**BIG, "max_tokens": BIG_OUTPUTS})["choices"][0]["text"]
    with (
        ThreadPoolExecutor(2) as pool,
        pressed.http.stream("POST", "/v1/completions", json={**BIG, "stream": True}) as reply,
    ):
        assert reply.status_code == 200
        lines = reply.iter_lines()
        first = next(lines)
        short = {prompt: pool.submit(pressed.complete, prompt, **SHORT) for prompt in alone}
        within(30, lambda: pressed.metric("num_retracted_requests_total") > before["num_retracted_requests_total"])
        events = data_of(iter([first, *lines]))
        answers = {prompt: answer.result() for prompt, answer in short.items()}
    assert list(events[-1]) == ["error"]
    check_exhausted(events[-1]["error"])
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == so_far
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    for prompt, answer in answers.items():
        assert answer["choices"] == alone[prompt]
        assert answer["usage"]["ebbtide"]["num_retractions"] >= 1
    check_idle(pressed)
    after = pressed.totals()
    assert after["num_retracted_requests_total"] - before["num_retracted_requests_total"] >= 2
    assert after["num_requests_total"] - before["num_requests_total"] == 2
    assert pressed.metric("num_aborted_requests_total") - before["num_aborted_requests_total"] == 1
    check_events(pressed.http.get("/pressure").json(), seen)
    assert all(psutil.Process(pid).is_running() for pid in pressed_daemon.pids.values())
    assert pressed_daemon.log.count("Retract requests") >= 2


def check_events(shown: dict[str, Any], seen: int) -> None:
    """Each short request was retracted at least once; the large one was not, and was aborted as the last one."""
    events = shown["events"][seen - shown["num_events_total"] :]
    assert {event["cause"] for event in events} == {"memory"}
    victims = [victim for event in events for victim in event["victims"]]
    assert len({victim["rid"] for victim in victims}) == 2
    for event in events:
        freed = sum(victim["freed_tokens"] for victim in event["victims"])
        assert event["available_after"] == event["available_before"] + freed
        assert event["ratio_after"] >= event["ratio_before"]
    [given_up] = [event for event in events if event["aborted"] is not None]
    assert given_up["aborted"] not in {victim["rid"] for victim in victims}
    assert given_up["num_waiting"] == 2


def test_a_whole_answer_that_outgrows_the_pool_is_500_and_the_others_finish(api: Api, pressed: Api) -> None:
    alone = {prompt: api.complete(prompt, **SHORT)["choices"] for prompt in ("third tide", "fourth tide")}
    made = pressed.metric("generation_tokens_total")
    with ThreadPoolExecutor(3) as pool:
        big = pool.submit(pressed.http.post, "/v1/completions", json=BIG)
        within(30, lambda: pressed.metric("generation_tokens_total") > made)
        short = {prompt: pool.submit(pressed.complete, prompt, **SHORT) for prompt in alone}
        while not big.done():
            check_scrape(pressed.totals())
        reply = big.result()
        assert {prompt: answer.result()["choices"] for prompt, answer in short.items()} == alone
    assert reply.status_code == 500
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    check_exhausted(reply.json()["error"])
    check_idle(pressed)
    assert pressed.metric("generation_tokens_total") - made == BIG_OUTPUTS + 600  # no token was sampled twice


def test_the_official_client_raises_and_does_not_try_again(pressed: Api) -> None:
    requests: list[httpx.Request] = []
    with (
        httpx.Client(event_hooks={"request": [requests.append]}) as http,
        openai.OpenAI(base_url=f"{pressed.url}/v1", api_key="none", http_client=cast(Any, http), timeout=60) as client,
    ):
        assert client.max_retries == 2
        fields: dict[str, Any] = {"model": "sim", "prompt": QUICK["prompt"], "max_tokens": 3000, "temperature": 0}
        with pytest.raises(openai.InternalServerError) as whole:
            client.completions.create(**fields, extra_body={"ignore_eos": True})
        assert whole.value.code == "kv_cache_exhausted"
        texts: list[str] = []
        chunks = client.completions.create(**fields, stream=True, extra_body={"ignore_eos": True})
        with pytest.raises(openai.APIError) as streamed:
            texts.extend(chunk.choices[0].text for chunk in chunks)
        assert streamed.value.code == "kv_cache_exhausted"
        assert "".join(texts)
    assert len(requests) == 2
    check_idle(pressed)


@pytest.mark.parametrize("stream", [False, True])
def test_one_exhausted_choice_ends_the_whole_request_with_one_error(pressed: Api, stream: bool) -> None:
    aborted = pressed.metric("num_aborted_requests_total")
    body = {**QUICK, "prompt": "n" * 600, "n": 3, "stream": stream}
    with pressed.http.stream("POST", "/v1/completions", json=body) as reply:
        if stream:
            *events, last = data_of(reply.iter_lines())
            assert all(choice["finish_reason"] is None for event in events for choice in event["choices"])
        else:
            last = json.loads(reply.read())
    assert reply.status_code == (200 if stream else 500)
    assert list(last) == ["error"]
    check_exhausted(last["error"])
    check_idle(pressed)
    assert pressed.metric("num_aborted_requests_total") == aborted + 3


def test_ten_answers_that_need_twice_the_pool_equal_those_of_single_requests(api: Api, pressed: Api) -> None:
    fields = {**SHORT, "max_tokens": 140}
    prompts = [f"{number} tide " * 8 for number in range(10)]
    before = pressed.totals()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda prompt: pressed.complete(prompt, **fields), prompts))
    assert [answer["choices"] for answer in answers] == [
        api.complete(prompt, **fields)["choices"] for prompt in prompts
    ]
    check_idle(pressed)
    after = pressed.totals()
    costs = [answer["usage"]["ebbtide"] for answer in answers if "ebbtide" in answer["usage"]]
    for name, total in [
        ("num_retractions", "num_retracted_requests_total"),
        ("recomputed_tokens", "num_recomputed_tokens_total"),
    ]:
        assert sum(cost[name] for cost in costs) == after[total] - before[total] > 0


def test_every_retraction_is_in_the_events_and_in_the_log(start_daemon: Any) -> None:
    """Includes retractions of requests in mid-prefill, which are frequent with chunks of half a page."""
    daemon = start_daemon(
        *("--max-total-tokens", "192", "--page-size", "8", "--chunked-prefill-size", "4"),
        *("--context-length", "2048", "--schedule-conservativeness", "0.001"),
    )
    rng = random.Random(3)
    prompts = [rng.choice("abcdef") * rng.randint(8, 48) for _ in range(80)]
    fields = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True, "stop_token_ids": list(range(60, 64))}
    with closing(Api(daemon.url)) as api:
        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(lambda prompt: api.complete(prompt, **fields), prompts))
        assert all(answer["choices"][0]["finish_reason"] == "stop" for answer in answers)
        check_idle(api)
        shown, retracted = api.http.get("/pressure").json(), api.metric("num_retracted_requests_total")
    victims = [victim["rid"] for event in shown["events"] for victim in event["victims"]]
    assert shown["num_events_total"] == len(shown["events"])  # none was dropped
    assert retracted == len(victims) > 0
    assert len(re.findall(r"\S+ \(\d+ outputs, \d+ pages\)", daemon.log)) == len(victims)
