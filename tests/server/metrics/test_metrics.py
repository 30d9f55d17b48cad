"""/metrics: snapshots, totals over scheduler restarts, and times measured in the front."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.messages import Stats
from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, HISTOGRAM_TEXTS, TOTAL_TEXTS
from ebbtide.server.metrics.metrics import FrontMetrics

from ..conftest import World


def read(metrics: FrontMetrics) -> dict[str, float]:
    """Return every sample; keys have the labels without model_name."""
    samples = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "org/sim"
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            samples[sample.name.removeprefix("ebbtide:") + (f"{{{labels}}}" if labels else "")] = sample.value
    return samples


@pytest.fixture
def metrics() -> FrontMetrics:
    return FrontMetrics("org/sim")


def test_a_snapshot_shows_as_gauges_counters_and_histograms(metrics: FrontMetrics) -> None:
    metrics.apply_stats(
        Stats(
            gauges={"num_running_reqs": 3, "kv_available_tokens{pool=full}": 64},
            totals={"prompt_tokens_total": 10, "num_requests_total{finish_reason=stop}": 2},
            observations={"retractions_per_request": [0, 1, 1]},
        )
    )
    samples = read(metrics)
    assert samples["num_running_reqs"] == 3
    assert samples["kv_available_tokens{pool=full}"] == 64
    assert samples["prompt_tokens_total"] == 10
    assert samples["num_requests_total{finish_reason=stop}"] == 2
    assert samples["retractions_per_request_count"] == 3
    assert samples["retractions_per_request_bucket{le=0.0}"] == 1


def test_totals_continue_over_a_restart(metrics: FrontMetrics) -> None:
    for total in (5, 8, 2, 3, 1):
        metrics.apply_stats(Stats({}, {"generation_tokens_total": total}, {}))
    assert read(metrics)["generation_tokens_total"] == 8 + 3 + 1


def test_the_hit_rate_is_that_of_all_prompt_tokens_so_far(metrics: FrontMetrics) -> None:
    assert read(metrics)["cache_hit_rate"] == 0
    for prompt, cached in ((100, 20), (300, 140), (100, 60)):  # the last one is of a new scheduler
        metrics.apply_stats(Stats({}, {"prompt_tokens_total": prompt, "cached_tokens_total": cached}, {}))
    assert read(metrics)["cache_hit_rate"] == 200 / 400


def test_the_load_reads_zero_without_a_scheduler_and_totals_stay(metrics: FrontMetrics) -> None:
    metrics.apply_stats(Stats({"num_running_reqs": 3, "num_queue_reqs": 2}, {"prompt_tokens_total": 7}, {}))
    metrics.on_scheduler_death()
    samples = read(metrics)
    assert (samples["num_running_reqs"], samples["num_queue_reqs"], samples["prompt_tokens_total"]) == (0, 0, 7)


def test_retractions_balance_over_a_schedulers_death_and_its_requests_are_counted(metrics: FrontMetrics) -> None:
    """retracted = resumed + ended while retracted + waiting, also after the scheduler's death."""
    totals: dict[str, float] = {"num_retracted_requests_total": 9, "num_resumed_requests_total": 1}
    totals["num_ended_while_retracted_total{reason=client}"] = 1
    metrics.apply_stats(Stats(gauges={"num_retracted_reqs": 7}, totals=totals, observations={}))
    metrics.on_scheduler_death(16)
    metrics.apply_stats(
        Stats(gauges={"num_retracted_reqs": 0}, totals={"num_retracted_requests_total": 0}, observations={})
    )
    samples = read(metrics)
    assert samples["num_ended_while_retracted_total{reason=engine_dead}"] == 7
    ended = sum(value for name, value in samples.items() if name.startswith("num_ended_while_retracted_total"))
    resumed = samples["num_resumed_requests_total"]
    assert samples["num_retracted_requests_total"] == resumed + ended + samples["num_retracted_reqs"]
    assert samples["num_aborted_requests_total{reason=engine_dead}"] == 16


def test_the_pool_of_a_scheduler_that_is_gone_reads_zero_too(metrics: FrontMetrics) -> None:
    metrics.apply_stats(Stats({"kv_available_tokens{pool=host}": 64, "new_token_ratio": 0.7}, {}, {}))
    metrics.on_scheduler_death()
    samples = read(metrics)
    assert (samples["kv_available_tokens{pool=host}"], samples["new_token_ratio"]) == (0, 0)


# Series of the scheduler that exist from the first scrape, and those added by its first snapshot.
NAMES_AT_START = """
    num_running_reqs num_queue_reqs num_retracted_reqs num_grammar_queue_reqs token_usage gen_throughput
    expected_queue_seconds
    num_retracted_requests num_retracted_input_tokens num_retracted_output_tokens num_recomputed_tokens
    num_delayed_rows kv_offloaded_tokens kv_restored_tokens cache_hit_rate
    num_resumed_requests num_ended_while_retracted num_preempted_requests num_aborted_requests num_requests
    prompt_tokens cached_tokens generation_tokens evicted_tokens admission_alarms kv_invariant_violations
    num_invalid_logits num_received_requests embedding_requests embedding_inputs embedding_tokens
    embedding_batch_inputs embedding_batch_seconds
    retractions_per_request retract_resume_seconds time_to_first_token_seconds inter_token_latency_seconds
    e2e_request_latency_seconds queue_time_seconds scheduler_step_seconds scheduler_step_tokens
    prefill_time_seconds decode_time_seconds inference_time_seconds time_per_output_token_seconds
    request_prompt_tokens request_generation_tokens request_params_n request_params_max_tokens
    http_requests http_responses http_requests_active
    grammar_compilation_time_seconds trace_spans_exported trace_spans_dropped
"""
POOL_PARTS = ("available", "evictable", "protected", "session_held", "uncached", "quarantined")
LATER = [
    *(f"kv_{part}_tokens" for part in POOL_PARTS),
    *("new_token_ratio", "max_total_num_tokens", "page_size", "kv_pool_usage"),
    *("num_streaming_sessions", "streaming_session_held_tokens", "watchdog_last_progress_seconds"),
]


def test_every_series_is_exported_from_the_start_with_help(metrics: FrontMetrics) -> None:
    families = {family.name for family in text_string_to_metric_families(metrics.render().decode())}
    names = {name for name in families if not name.endswith("_created")}
    assert names == {f"ebbtide:{name}" for name in NAMES_AT_START.split()}
    metrics.apply_stats(Stats(dict.fromkeys(LATER, 1.0), {}, {}))
    for family in text_string_to_metric_families(metrics.render().decode()):
        words = family.name.removeprefix("ebbtide:").replace("_", " ")
        assert family.documentation.endswith(".")
        assert len(family.documentation) > 15
        assert family.documentation.lower().rstrip(".") != words, "that only repeats the name"


def test_every_series_of_the_scheduler_has_a_help_text() -> None:
    names = set()
    for file in (Path(__file__).resolve().parents[3] / "scheduler").rglob("*.py"):
        names |= set(
            re.findall(r'"([a-z_]+(?:_total|_seconds|_per_request|_reqs|_tokens|_size))["{]', file.read_text("utf-8"))
        )
    assert len(names) > 20
    assert names - {*GAUGE_TEXTS, *TOTAL_TEXTS, *HISTOGRAM_TEXTS} == set()


def test_an_event_with_a_reason_appears_as_an_increase(metrics: FrontMetrics) -> None:
    key = "num_ended_while_retracted_total{reason=client}"
    assert read(metrics)[key] == 0
    metrics.apply_stats(Stats({}, {key: 2, "num_aborted_requests_total{reason=new_one}": 1}, {}))
    samples = read(metrics)
    assert (samples[key], samples["num_aborted_requests_total{reason=new_one}"]) == (2, 1)


def test_the_time_until_a_retracted_request_runs_again_has_buckets_up_to_minutes(metrics: FrontMetrics) -> None:
    metrics.apply_stats(Stats({}, {}, {"retract_resume_seconds": [0.02, 45, 3000]}))
    samples = read(metrics)
    assert samples["retract_resume_seconds_bucket{le=0.025}"] == 1
    assert samples["retract_resume_seconds_bucket{le=60.0}"] == 2
    assert samples["retract_resume_seconds_bucket{le=+Inf}"] == 3


def test_an_unknown_series_is_exported_under_its_name(metrics: FrontMetrics) -> None:
    metrics.apply_stats(Stats({"some_new_gauge": 4}, {}, {}))
    assert read(metrics)["some_new_gauge"] == 4


def test_an_invalid_series_name_does_not_break_the_page(metrics: FrontMetrics) -> None:
    metrics.apply_stats(Stats({"bad name{": 1, "num_running_reqs": 1}, {}, {}))
    assert read(metrics)["num_running_reqs"] == 1


@pytest.mark.anyio
async def test_times_are_measured_once_per_request_with_a_token(world: World) -> None:
    await world.chat(n=3)
    await world.chat(stream=True)
    world.engine.answer = lambda request: world.engine.abort(request.rids[0])
    await world.chat()
    reply = await world.client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    counts = {
        line.split("{")[0]: float(line.split()[-1]) for line in reply.text.splitlines() if "_seconds_count{" in line
    }
    assert counts["ebbtide:time_to_first_token_seconds_count"] == 2
    assert counts["ebbtide:e2e_request_latency_seconds_count"] == 2
    assert counts["ebbtide:inter_token_latency_seconds_count"] == 4 * 5
    assert 'ebbtide:open_http_requests{model_name="sim"} 0.0' in reply.text


@pytest.mark.anyio
async def test_a_request_rejected_as_too_long_by_the_front_is_counted(world: World) -> None:
    for _ in range(2):
        assert (await world.complete(prompt=[1] * 600)).status_code == 400
    assert (await world.complete(n=0)).status_code == 400
    page = (await world.client.get("/metrics")).text
    assert 'ebbtide:num_aborted_requests_total{model_name="sim",reason="context_length_exceeded"} 2.0' in page
