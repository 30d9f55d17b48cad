"""/metrics of a complete daemon: every series exists, changes under load, and is constant when the daemon is idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, HISTOGRAM_TEXTS, LABELS, TOTAL_TEXTS

from .audit import LIMIT_S, check_idle, check_scrape, send, within
from .conftest import Api

FLAGS = ("--max-total-tokens", "1024", "--page-size", "16", "--sim-step-ms", "2", "--context-length", "4096")
PRESSURE = ("--retraction-risk", "0.9999999", "--enable-streaming-session", "--max-client-priority", "9")
PRIORITY = ("--schedule-policy", "priority")
COMPAT = ("--metrics-compat", "vllm,sglang", "--served-model-name", 'odd "name"')

# The series of the contract on memory pressure; of the other series, only the names are checked.
PROMISED = """
    num_running_reqs num_queue_reqs num_retracted_reqs num_retracted_requests_total num_retracted_input_tokens_total
    num_retracted_output_tokens_total num_recomputed_tokens_total num_resumed_requests_total
    num_ended_while_retracted_total num_preempted_requests_total num_aborted_requests_total num_requests_total
    retractions_per_request retract_resume_seconds new_token_ratio token_usage kv_available_tokens
    kv_evictable_tokens kv_protected_tokens kv_session_held_tokens kv_uncached_tokens kv_quarantined_tokens
    max_total_num_tokens cache_hit_rate prompt_tokens_total cached_tokens_total generation_tokens_total
    time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds queue_time_seconds
    gen_throughput num_streaming_sessions streaming_session_held_tokens evicted_tokens_total
    kv_invariant_violations_total scheduler_step_seconds watchdog_last_progress_seconds
"""
# The series that this load must change; for a histogram, the number of its samples.
MOVED = """
    num_retracted_requests_total num_retracted_input_tokens_total num_retracted_output_tokens_total
    num_recomputed_tokens_total num_resumed_requests_total num_requests_total
    prompt_tokens_total cached_tokens_total generation_tokens_total
    evicted_tokens_total retractions_per_request_count retract_resume_seconds_count time_to_first_token_seconds_count
    inter_token_latency_seconds_count e2e_request_latency_seconds_count queue_time_seconds_count
    prefill_time_seconds_count decode_time_seconds_count inference_time_seconds_count
    time_per_output_token_seconds_count scheduler_step_seconds_count scheduler_step_tokens_count
    request_prompt_tokens_count request_generation_tokens_count request_params_n_count request_params_max_tokens_count
    http_requests_total http_responses_total
"""
BUSY = (
    *("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "token_usage", "gen_throughput"),
    *("new_token_ratio", "kv_uncached_tokens", "open_http_requests", "http_requests_active"),
)


@pytest.fixture(scope="module")
def pressed(start_shared_daemon: Any) -> Iterator[Api]:
    """A daemon with a pool of 64 pages that also exports the metric names of other engines."""
    api = Api(start_shared_daemon(*FLAGS, *PRESSURE, *PRIORITY, *COMPAT).url)
    yield api
    api.close()


def load(api: Api) -> list[Counter[str]]:
    """Run twenty requests that do not fit together, some of them equal. Returns the scrapes during the run."""
    bodies = [{"prompt": f"tide {index % 12} " * 8, "max_tokens": 150, "ignore_eos": True} for index in range(20)]
    scrapes = []
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(api.complete, **body) for body in bodies]
        while not all(answer.done() for answer in answers):
            scrapes.append(api.totals())
            check_scrape(api.totals())
    assert all(answer.result()["choices"][0]["finish_reason"] == "length" for answer in answers)
    return scrapes


def test_every_documented_series_is_exported_with_its_labels_and_no_other_series(pressed: Api) -> None:
    pressed.complete("one")
    within(10, lambda: "ebbtide:kv_available_tokens{" in pressed.http.get("/metrics").text)  # the first statistics
    reply = pressed.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(reply.text):
        name = family.name.removeprefix("ebbtide:") + ("_total" if family.type == "counter" else "")
        if family.name.startswith("ebbtide:") and not name.endswith("_created"):
            found[name] = set().union(*(sample.labels for sample in family.samples))
    assert set(PROMISED.split()) <= set(found)
    assert set(found) == {*GAUGE_TEXTS, *TOTAL_TEXTS, *HISTOGRAM_TEXTS}
    for name, labels in found.items():
        assert labels - {"le"} == {"model_name", *LABELS.get(name, ())}, name


def test_the_series_change_under_load_and_are_constant_when_idle(pressed: Api) -> None:
    before = pressed.totals()
    scrapes = load(pressed)
    check_idle(pressed)
    after = pressed.totals()
    assert [name for name in MOVED.split() if after[name] <= before[name]] == []
    assert [name for name in BUSY if not any(scrape[name] > 0 for scrape in scrapes)] == []
    for name in ("inference_time_seconds_count", "request_generation_tokens_count", "queue_time_seconds_count"):
        assert after[name] - before[name] == 20, name
    assert after["http_requests_active"] == 1  # the scrape itself


def test_the_memory_of_sessions_and_of_the_cache_is_exported(pressed: Api) -> None:
    body = {"capacity_of_str_len": 900, "session_id": "s", "streaming": True}
    assert pressed.http.post("/open_session", json=body).status_code == 200
    pressed.complete("a turn of some length", max_tokens=20, ignore_eos=True, session_params={"id": "s"})
    within(LIMIT_S, lambda: pressed.totals()["streaming_session_held_tokens"] > 0)
    totals = pressed.totals()
    assert totals["num_streaming_sessions"] == 1
    assert totals["kv_session_held_tokens"] == totals["streaming_session_held_tokens"]
    assert pressed.http.post("/close_session", json={"session_id": "s"}).status_code == 200
    pressed.complete("stays in the cache " * 4, max_tokens=2)
    check_idle(pressed)
    totals = pressed.totals()
    assert (totals["num_streaming_sessions"], totals["kv_session_held_tokens"]) == (0, 0)
    assert totals["kv_evictable_tokens"] > 0


def test_every_way_to_end_early_counts_under_its_reason(pressed: Api) -> None:
    def ended(reason: str) -> float:
        lines = pressed.http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("ebbtide:num_aborted_requests_total{") and reason in line]
        return sum(float(line.split()[-1]) for line in found)

    before = {reason: ended(f'reason="{reason}"') for reason in ("client", "aborted", "kv_cache_exhausted")}
    long = {"prompt": "long", "max_tokens": 900, "ignore_eos": True}
    connection = send(pressed.url, long)
    within(30, lambda: pressed.totals()["num_running_reqs"] > 0)
    connection.close()
    check_idle(pressed)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(pressed.http.post, "/v1/completions", json=long, headers={"x-request-id": "mine"})
        within(30, lambda: pressed.totals()["num_running_reqs"] > 0)  # the engine counts only received requests
        within(30, lambda: pressed.http.post("/abort_request", json={"rid": "mine"}).json()["num_aborted"] == 1)
        assert answer.result().status_code == 499
    assert pressed.http.post("/v1/completions", json={**long, "max_tokens": 3000}).status_code == 500
    within(30, lambda: all(ended(f'reason="{reason}"') == count + 1 for reason, count in before.items()))
    check_idle(pressed)


def test_a_request_preempted_by_a_higher_priority_counts_as_preempted_and_retracted(pressed: Api) -> None:
    before = pressed.totals()
    with ThreadPoolExecutor(8) as pool:
        low = [
            pool.submit(pressed.complete, f"low {index} " * 10, max_tokens=200, ignore_eos=True) for index in range(6)
        ]
        within(30, lambda: pressed.totals()["token_usage"] > 0.6)
        high = pool.submit(pressed.complete, "high " * 100, max_tokens=100, ignore_eos=True, priority=9)
        assert high.result()["choices"][0]["finish_reason"] == "length"
        assert {answer.result()["choices"][0]["finish_reason"] for answer in low} == {"length"}
    check_idle(pressed)
    after = pressed.totals()
    preempted = after["num_preempted_requests_total"] - before["num_preempted_requests_total"]
    assert 0 < preempted <= after["num_retracted_requests_total"] - before["num_retracted_requests_total"]


def test_metrics_have_the_same_values_under_the_names_of_other_engines(pressed: Api) -> None:
    pressed.complete("one")
    check_idle(pressed)
    values: dict[str, float] = {}
    for line in pressed.http.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            assert r'model_name="odd \"name\""' in series
            values[series.split("{")[0]] = values.get(series.split("{")[0], 0.0) + float(value)
    for theirs, ours in {
        "vllm:num_requests_running": "num_running_reqs",
        "vllm:prompt_tokens_total": "prompt_tokens_total",
        "vllm:generation_tokens_total": "generation_tokens_total",
        "vllm:num_preemptions_total": "num_retracted_requests_total",
        "vllm:e2e_request_latency_seconds_count": "e2e_request_latency_seconds_count",
        "vllm:request_decode_time_seconds_sum": "decode_time_seconds_sum",
        "vllm:iteration_tokens_total_sum": "scheduler_step_tokens_sum",
        "sglang:cached_tokens_total": "cached_tokens_total",
        "sglang:num_requests_total": "num_requests_total",
        "sglang:num_retracted_requests_total": "num_retracted_requests_total",
        "sglang:inter_token_latency_seconds_count": "inter_token_latency_seconds_count",
    }.items():
        assert values[theirs] == values[f"ebbtide:{ours}"], theirs
    ends = values["ebbtide:num_requests_total"] + values["ebbtide:num_aborted_requests_total"]
    assert values["vllm:request_success_total"] + values["vllm:admission_rejections_total"] == ends


def test_an_unknown_engine_name_is_refused_at_start(start_daemon: Any) -> None:
    daemon = start_daemon("--metrics-compat", "tgi", ready=False)
    assert daemon.wait() == 1
    assert "--metrics-compat must be a comma-separated list of vllm and sglang, not 'tgi'." in daemon.log
