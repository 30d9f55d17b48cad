"""A retraction changes only the cost of an answer, for all options; compared with a daemon that has ample memory."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .audit import check_idle
from .conftest import Api
from .test_answers import text_of

EVERY_FEW_STEPS = ("--test-retract-interval", "7", "--chunked-prefill-size", "32", "--sim-step-ms", "2")
LENGTH = {"max_tokens": 90, "ignore_eos": True}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {**LENGTH, "temperature": 0},
    "sampled": {**LENGTH, "seed": 11, "temperature": 1.0, "top_p": 0.9},
    "penalties": {**LENGTH, "seed": 12, "presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "logprobs": {**LENGTH, "seed": 13, "logprobs": 3},
    "min_tokens": {"seed": 14, "max_tokens": 90, "min_tokens": 60, "logit_bias": {"256": 5}},
    "choices": {**LENGTH, "seed": 15, "n": 4, "stop": ["ab", "e", "Q"], "logprobs": 0},
}


@pytest.fixture(scope="module", params=["recompute", "restore"])
def retracting(request: pytest.FixtureRequest, start_shared_daemon: Any) -> Iterator[Api]:
    """A daemon that retracts a request every seventh step."""
    tier = ("--kv-offload-gb", "0.5") if request.param == "restore" else ()
    api = Api(start_shared_daemon(*EVERY_FEW_STEPS, *tier).url)
    yield api
    check_idle(api)
    assert (api.metric("kv_restored_tokens_total") > 0) is (request.param == "restore")
    api.close()


def logprobs_of(events: list[Any]) -> list[float]:
    """The log-probabilities in a stream of one choice."""
    shown = [choice["logprobs"] for event in events[:-1] for choice in event["choices"] if choice["logprobs"]]
    return [value for part in shown for value in part["token_logprobs"]]


@pytest.mark.parametrize("what", ASKED)
def test_an_answer_is_the_same_with_retractions(api: Api, retracting: Api, what: str) -> None:
    fields, prompt = ASKED[what], f"a prompt of some pages, {what}. " * 3
    ample, whole = api.complete(prompt, **fields), retracting.complete(prompt, **fields)
    assert whole["choices"] == ample["choices"]
    cost = whole["usage"].pop("ebbtide")
    assert cost["num_retractions"] >= 1
    assert cost["queue_ms"] >= 0
    ample["usage"].pop("prompt_tokens_details")
    assert whole["usage"].pop("prompt_tokens_details")["cached_tokens"] <= whole["usage"]["prompt_tokens"]
    assert whole["usage"] == ample["usage"]
    events = retracting.stream(prompt, **fields, stream_options={"include_usage": True})
    for choice in ample["choices"]:
        assert text_of(events, choice["index"]) == choice["text"]
    assert events[-2]["usage"]["completion_tokens"] == ample["usage"]["completion_tokens"]
    assert set(events[-2]["usage"]["ebbtide"]) == {"num_retractions", "recomputed_tokens", "queue_ms"}
    if what == "logprobs":
        assert len(ample["choices"][0]["logprobs"]["tokens"]) == LENGTH["max_tokens"]
        assert logprobs_of(events) == ample["choices"][0]["logprobs"]["token_logprobs"]


def test_an_answer_without_retractions_does_not_report_any(api: Api) -> None:
    assert "ebbtide" not in api.complete("tide", **ASKED["greedy"])["usage"]


def test_recomputed_tokens_are_never_counted_as_cached(retracting: Api) -> None:
    generator = random.Random(3)
    prompts = [[generator.randrange(32, 127) for _ in range(100)] for _ in range(8)]
    before = retracting.totals()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: retracting.complete(prompt, **ASKED["greedy"]), prompts))
    check_idle(retracting)
    after = retracting.totals()
    usages = [answer["usage"] for answer in answers]
    assert sum(usage["ebbtide"]["num_retractions"] for usage in usages) >= len(prompts)
    assert all(usage["prompt_tokens_details"]["cached_tokens"] == 0 for usage in usages)
    assert after["cached_tokens_total"] == before["cached_tokens_total"]
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == 800
    recomputed = after["num_recomputed_tokens_total"] - before["num_recomputed_tokens_total"]
    assert recomputed == sum(usage["ebbtide"]["recomputed_tokens"] for usage in usages)
    assert recomputed + after["kv_restored_tokens_total"] - before["kv_restored_tokens_total"] > 0


def test_a_prefix_is_counted_once_however_long_a_request_waits(start_daemon: Any) -> None:
    flags = ("--max-total-tokens", "512", "--sim-step-ms", "2", "--context-length", "2048")
    shared = "the beginning of every prompt, " * 6
    with contextlib.closing(Api(start_daemon(*flags, "--test-retract-interval", "20").url)) as api:
        usages = [api.complete(shared, max_tokens=1)["usage"]]
        with ThreadPoolExecutor(10) as pool:
            usages += pool.map(lambda i: api.complete(f"{shared} {i}", **ASKED["greedy"])["usage"], range(10))
        check_idle(api)
        totals = api.totals()
    assert totals["num_retracted_requests_total"] > 0
    assert totals["prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert totals["cached_tokens_total"] == cached > len(shared) * 5
