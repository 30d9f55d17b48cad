"""An operator controls a complete daemon: flush, pause, abort, time limits."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .audit import check_idle, send, unchanged, within
from .conftest import Api

ENDLESS = {"prompt": "tide", "max_tokens": 3000, "ignore_eos": True, "temperature": 0, "stream": True}
LONG_PROMPT = "a prompt of several pages, which the cache keeps: " * 4


@pytest.fixture(scope="module")
def steered(start_shared_daemon: Any) -> Any:
    """A separate daemon, because these tests affect all requests of a server."""
    flags = ("--sim-step-ms", "5", "--max-running-requests", "2", "--request-timeout", "60")
    with contextlib.closing(Api(start_shared_daemon(*flags).url)) as api:
        yield api


def flush(api: Api, timeout_s: float = 0) -> int:
    return api.http.post(f"/flush_cache?timeout={timeout_s}").status_code


def test_a_flush_happens_only_without_open_requests_and_empties_the_cache(steered: Api) -> None:
    steered.complete(LONG_PROMPT, max_tokens=4, temperature=0)
    again = steered.complete(LONG_PROMPT, max_tokens=4, temperature=0)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
    with contextlib.closing(send(steered.url, ENDLESS)), contextlib.closing(send(steered.url, ENDLESS)):
        within(10, lambda: steered.metric("num_running_reqs") == 2)
        assert flush(steered) == 400
        with contextlib.closing(send(steered.url, ENDLESS)):
            within(10, lambda: steered.metric("num_queue_reqs") == 1)
            with ThreadPoolExecutor(3) as pool:
                waiting = [pool.submit(flush, steered, seconds) for seconds in (0.05, 30, 30)]
                assert waiting[0].result() == 400
                assert steered.http.post("/abort_request", json={"abort_all": True}).json() == {"num_aborted": 3}
                assert [flushed.result() for flushed in waiting[1:]] == [200, 200]
    check_idle(steered)
    within(5, lambda: steered.metric("kv_evictable_tokens") == 0)
    after = steered.complete(LONG_PROMPT, max_tokens=4, temperature=0)
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert after["choices"] == again["choices"]
    check_idle(steered)


def test_a_pause_stops_tokens_and_changes_none(steered: Api) -> None:
    fields = {"max_tokens": 500, "ignore_eos": True, "temperature": 0}
    expected = steered.complete("tide", **fields)["choices"]
    with ThreadPoolExecutor(1) as pool:
        before = steered.metric("generation_tokens_total")
        answer = pool.submit(steered.complete, "tide", **fields)
        within(10, lambda: steered.metric("generation_tokens_total") > before)
        assert steered.http.post("/pause_generation").status_code == 200
        assert steered.http.get("/ready").json()["error"]["code"] == "paused"
        assert steered.http.get("/health").status_code == 200
        stopped = unchanged(steered, "generation_tokens_total")
        assert flush(steered) == 400
        assert steered.http.post("/v1/completions", json={"prompt": "x"}).status_code == 503
        assert steered.metric("generation_tokens_total") == stopped
        assert not answer.done()
        assert steered.http.post("/continue_generation").status_code == 200
        assert answer.result()["choices"] == expected
    check_idle(steered)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_runs_out_of_time_is_504(steered: Api, stream: bool) -> None:
    before = steered.totals()["num_aborted_requests_total"]
    body = {**ENDLESS, "stream": stream, "timeout": 0.3, "n": 2}
    reply = steered.http.post("/v1/completions", json=body)
    if stream:
        events = [line for line in reply.text.split("\n\n") if line]
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert '"finish_reason":"' not in reply.text
    else:
        assert reply.status_code == 504
        assert reply.headers["x-should-retry"] == "false"
        error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "timeout")
    check_idle(steered)
    assert steered.totals()["num_aborted_requests_total"] == before + 2


def test_requests_that_are_aborted_as_they_end_have_one_outcome_each(steered: Api) -> None:
    def one(index: int) -> int:
        return steered.http.post(
            "/v1/completions", json={"prompt": "x", "max_tokens": 1, "rid": f"r{index}"}
        ).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(one, index) for index in range(150)]
        for index in range(150):
            assert steered.http.post("/abort_request", json={"rid": [f"r{index}", "unknown"]}).status_code == 200
        assert {answer.result() for answer in answers} <= {200, 499}
    check_idle(steered)
    assert steered.metric("open_http_requests") == 0
