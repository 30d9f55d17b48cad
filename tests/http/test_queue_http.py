"""The waiting queue of a complete daemon: its limit, the exempt requests, and priorities."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
import pytest

from .audit import LIMIT_S, check_idle, check_scrape, send, within
from .conftest import Api

ENDLESS = {"prompt": "tide", "max_tokens": 3000, "ignore_eos": True, "temperature": 0, "stream": True}
SHORT = {"prompt": "s", "max_tokens": 1}


@pytest.fixture(scope="module")
def queue(start_shared_daemon: Any) -> Iterator[Api]:
    """A daemon that runs one request, with places for two more."""
    flags = ("--max-running-requests", "1", "--max-queued-requests", "2", "--sim-step-ms", "5")
    priority = ("--schedule-policy", "priority", "--max-client-priority", "5")
    with contextlib.closing(Api(start_shared_daemon(*flags, *priority).url)) as api:
        yield api


def has_load(api: Api, load: int) -> bool:
    return api.load() == load


def num_begun(api: Api) -> float:
    """Return the number of requests that have run, from one scrape, including requests that have already finished."""
    totals = api.totals()
    return totals["num_running_reqs"] + totals["num_retracted_reqs"] + totals["num_requests_total"]


def test_a_full_queue_answers_429_with_retry_after(queue: Api) -> None:
    with contextlib.ExitStack() as open_connections:
        for num_sent in (1, 2, 3):
            open_connections.enter_context(send(queue.url, ENDLESS))
            within(10, partial(has_load, queue, 2 * num_sent))
        for stream in (False, True):
            reply = queue.http.post("/v1/completions", json={**ENDLESS, "stream": stream})
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1
            assert "x-should-retry" not in reply.headers
            error = reply.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert "--max-queued-requests" in error["message"]
        with pytest.raises(openai.RateLimitError):
            queue.openai.completions.create(model="sim", prompt="tide")
        assert queue.metric("num_queue_reqs") == 2
        open_connections.close()
        check_idle(queue)
        assert queue.complete("tide", max_tokens=1)


def test_a_retracted_request_is_requeued_into_a_full_queue(api: Api, start_daemon: Any) -> None:
    flags = ("--max-running-requests", "4", "--max-queued-requests", "2", "--test-retract-interval", "5")
    fields = {"max_tokens": 300, "temperature": 0, "ignore_eos": True}
    prompts = [f"long answer {number}" for number in range(4)]
    alone = [api.complete(prompt, **fields)["choices"] for prompt in prompts]
    with contextlib.closing(Api(start_daemon(*flags, "--sim-step-ms", "5").url)) as busy:
        with ThreadPoolExecutor(8) as pool:
            long = [pool.submit(busy.complete, prompt, **fields) for prompt in prompts]
            within(30, lambda: num_begun(busy) == 4)
            statuses: set[int] = set()
            while not all(answer.done() for answer in long):
                short = [pool.submit(busy.http.post, "/v1/completions", json=SHORT) for _ in range(4)]
                while not all(reply.done() for reply in short):  # two of them fill the queue until a row is free
                    check_scrape(busy.totals())
                statuses |= {reply.result().status_code for reply in short}
            answers = [answer.result() for answer in long]
        assert statuses == {200, 429}
        assert [answer["choices"] for answer in answers] == alone
        assert {answer["usage"]["ebbtide"]["num_retractions"] for answer in answers} == {3}  # the bound
        check_idle(busy)


def test_a_priority_above_what_clients_may_have_is_lowered_to_it(queue: Api) -> None:
    with send(queue.url, {**ENDLESS, "priority": 5}):
        within(10, lambda: queue.metric("num_running_reqs") == 1)
        with send(queue.url, {**ENDLESS, "priority": 100}):  # no higher than the first
            within(10, lambda: queue.metric("num_queue_reqs") == 1)
            made = queue.metric("generation_tokens_total")
            within(10, lambda: queue.metric("generation_tokens_total") > made + 20)
            assert queue.metric("num_preempted_requests_total") == 0
    check_idle(queue)
    with send(queue.url, ENDLESS):
        within(10, lambda: queue.metric("num_running_reqs") == 1)
        answer = queue.complete("urgent", priority=100, max_tokens=3)
        assert answer["usage"]["prompt_tokens"] == 6
        within(LIMIT_S, lambda: queue.metric("num_preempted_requests_total") == 1)
        [event] = queue.http.get("/pressure").json()["events"]
        assert (event["cause"], len(event["victims"])) == ("priority", 1)
    check_idle(queue)
