"""--metrics-compat: our metrics under other engines' names, as their dashboards expect them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.errors import StartupError
from ebbtide.messages import Stats
from ebbtide.server.metrics.compat import parse_metric_aliases
from ebbtide.server.metrics.compat_names import ENGINE_ALIASES, Alias
from ebbtide.server.metrics.help_texts import GAUGE_TEXTS, HISTOGRAM_TEXTS, TOTAL_TEXTS
from ebbtide.server.metrics.metrics import FrontMetrics

MODEL = 'org/"odd"\\name\n'
GAUGES = {
    "num_running_reqs": 3,
    "num_queue_reqs": 2,
    "num_retracted_reqs": 1,
    "token_usage": 0.75,
    "max_total_num_tokens": 1024,
    "page_size": 16,
    "kv_available_tokens{pool=full}": 192,
    "kv_evictable_tokens{pool=full}": 64,
    "kv_available_tokens{pool=host}": 5000,
}
TOTALS: dict[str, float] = {
    "num_received_requests_total": 44,
    "prompt_tokens_total": 300,
    "cached_tokens_total": 100,
    "generation_tokens_total": 50,
    "num_retracted_requests_total": 4,
    "num_requests_total{finish_reason=stop}": 5,
    "num_requests_total{finish_reason=length}": 6,
    "num_aborted_requests_total{reason=client}": 7,
    "num_aborted_requests_total{reason=kv_cache_exhausted}": 1,
    "num_aborted_requests_total{reason=queue_full}": 20,
}


def families(metrics: FrontMetrics) -> dict[str, Metric]:
    """Return the families by name, as a scraper parses them; counters without ``_total``."""
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}


def samples(metrics: FrontMetrics) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in families(metrics).values():
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def value(metrics: FrontMetrics, name: str, **labels: str) -> float:
    """Return the value of the single sample with that name and these labels."""
    (found,) = [v for n, own, v in samples(metrics) if n == name and labels.items() <= own.items()]
    return found


@pytest.fixture
def both() -> FrontMetrics:
    metrics = FrontMetrics(MODEL, parse_metric_aliases("vllm,sglang"), context_length=500)
    metrics.apply_stats(Stats(GAUGES, TOTALS, {}))
    return metrics


def test_without_the_flag_only_our_names_are_exported() -> None:
    assert all(name.startswith("ebbtide:") for name in families(FrontMetrics("sim", parse_metric_aliases(""))))


@pytest.mark.parametrize("names", ["vllm", "sglang", "sglang,vllm"])
def test_each_engine_can_be_selected_alone_or_with_the_other(names: str) -> None:
    found = {name.partition(":")[0] for name in families(FrontMetrics("sim", parse_metric_aliases(names)))}
    assert found == {"ebbtide", *names.split(",")}


@pytest.mark.parametrize("names", ["tgi", "vllm,", "vllm,vllm", "vLLM", ",", "vllm sglang"])
def test_an_unknown_engine_is_refused(names: str) -> None:
    with pytest.raises(StartupError, match="--metrics-compat must be a comma-separated list of vllm and sglang"):
        parse_metric_aliases(names)


# Commonly charted metrics: name, expected value, labels.
EXPECTED = [
    ("vllm:num_requests_running", 3, {}),
    ("vllm:num_requests_waiting", 2, {}),
    ("vllm:kv_cache_usage_perc", 0.75, {}),
    ("vllm:gpu_cache_usage_perc", 0.75, {}),
    ("vllm:prompt_tokens_total", 300, {}),
    ("vllm:prompt_tokens_cached_total", 100, {}),
    ("vllm:generation_tokens_total", 50, {}),
    ("vllm:prefix_cache_queries_total", 300, {}),
    ("vllm:prefix_cache_hits_total", 100, {}),
    ("vllm:num_preemptions_total", 4, {}),
    ("vllm:request_success_total", 5, {"finished_reason": "stop"}),
    ("vllm:request_success_total", 6, {"finished_reason": "length"}),
    ("vllm:request_success_total", 7, {"finished_reason": "abort"}),
    ("vllm:request_success_total", 1, {"finished_reason": "error"}),
    ("vllm:admission_rejections_total", 20, {"reason": "queue_full"}),
    ("vllm:cache_config_info", 1, {"block_size": "16", "num_gpu_blocks": "64"}),
    ("sglang:num_running_reqs", 3, {}),
    ("sglang:num_queue_reqs", 2, {}),
    ("sglang:num_retracted_reqs", 1, {}),
    ("sglang:token_usage", 0.75, {}),
    ("sglang:num_used_tokens", 768, {}),
    ("sglang:kv_available_tokens", 192, {}),
    ("sglang:kv_evictable_tokens", 64, {}),
    ("sglang:max_total_num_tokens", 1024, {}),
    ("sglang:prompt_tokens_total", 300, {}),
    ("sglang:cached_tokens_total", 100, {}),
    ("sglang:generation_tokens_total", 50, {}),
    ("sglang:cache_hit_rate", 1 / 3, {}),
    ("sglang:num_requests_total", 11, {}),
    ("sglang:num_aborted_requests_total", 28, {}),
    ("sglang:num_retracted_requests_total", 4, {}),
]


@pytest.mark.parametrize(("name", "expected", "labels"), EXPECTED)
def test_values_are_equal_under_the_names_of_other_engines(
    both: FrontMetrics, name: str, expected: float, labels: dict[str, str]
) -> None:
    assert value(both, name, **labels) == pytest.approx(expected)


def test_every_request_counts_once_in_vllms_names(both: FrontMetrics) -> None:
    ends = ("vllm:request_success_total", "vllm:admission_rejections_total")
    assert sum(v for name, _, v in samples(both) if name in ends) == 5 + 6 + 7 + 1 + 20


def test_every_sample_has_the_labels_that_their_dashboards_select_by(both: FrontMetrics) -> None:
    both.observe("time_to_first_token_seconds", 0.1)
    for name, labels, _ in samples(both):
        assert labels["model_name"] == MODEL, name
        if name.startswith("vllm:"):
            assert labels["engine"] == "0", name
        if name.startswith("sglang:"):
            assert (labels["tp_rank"], labels["pp_rank"]) == ("0", "0"), name


def bounds(metrics: FrontMetrics, name: str, **labels: str) -> list[float]:
    """Return the upper bounds of a histogram's buckets."""
    return [
        float(own["le"]) for n, own, _ in samples(metrics) if n == f"{name}_bucket" and labels.items() <= own.items()
    ]


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("vllm:time_to_first_token_seconds", 22, 0.001, 2560),
        ("vllm:inter_token_latency_seconds", 19, 0.01, 80),
        ("vllm:request_time_per_output_token_seconds", 19, 0.01, 80),
        ("vllm:e2e_request_latency_seconds", 21, 0.3, 7680),
        ("vllm:request_queue_time_seconds", 21, 0.3, 7680),
        ("vllm:request_prompt_tokens", 9, 1, 500),  # 1-2-5 up to the context length
        ("sglang:time_to_first_token_seconds", 18, 0.1, 400),
        ("sglang:e2e_request_latency_seconds", 22, 0.1, 2400),
    ],
)
def test_buckets_match_the_other_engines(both: FrontMetrics, name: str, count: int, first: float, last: float) -> None:
    found = bounds(both, name)
    assert found == sorted(found)
    assert (len(found), found[0], found[-2], found[-1]) == (count + 1, first, last, float("inf"))


def test_a_sample_is_in_every_histogram_of_its_quantity_once(both: FrontMetrics) -> None:
    both.observe_token_gap(0.05, 3)
    both.apply_stats(Stats({}, {}, {"prefill_time_seconds": [0.5], "decode_time_seconds": [2, 4]}))
    both.observe_request(2, [10, 20])
    for name in ("ebbtide:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"):
        assert value(both, f"{name}_count") == 3
        assert value(both, f"{name}_sum") == pytest.approx(0.15)
    assert value(both, "vllm:request_decode_time_seconds_sum") == 6
    stages = "sglang:per_stage_req_latency_seconds_count"
    assert value(both, stages, stage="prefill_forward") == 1
    assert value(both, stages, stage="decode_forward") == 2
    assert value(both, "vllm:request_params_n_sum") == 4
    assert value(both, "vllm:request_params_max_tokens_sum") == 30


def test_types_match_the_other_engines(both: FrontMetrics) -> None:
    found = families(both)
    assert found["vllm:num_requests_running"].type == "gauge"
    assert found["vllm:generation_tokens"].type == "counter"
    assert found["sglang:e2e_request_latency_seconds"].type == "histogram"
    assert found["vllm:iteration_tokens_total"].type == "histogram"  # despite its name


def test_without_a_scheduler_their_gauges_read_zero_and_their_totals_stay(both: FrontMetrics) -> None:
    both.on_scheduler_death(num_sent=46)  # 2 more than in the snapshot, in which 5 run or wait
    gauges = {alias.name for alias in ENGINE_ALIASES["vllm"].gauges}
    assert {value(both, f"vllm:{name}") for name in gauges} == {0}
    assert value(both, "sglang:num_used_tokens") == 0
    assert "vllm:cache_config_info" not in families(both)
    assert value(both, "vllm:generation_tokens_total") == 50
    assert value(both, "vllm:request_success_total", finished_reason="error") == 1 + 5 + 2
    both.apply_stats(Stats(GAUGES, {**dict.fromkeys(TOTALS, 0.0), "generation_tokens_total": 7}, {}))
    assert value(both, "vllm:generation_tokens_total") == 57
    assert value(both, "sglang:num_requests_total") == 11


def test_every_alias_refers_to_our_series() -> None:
    for aliases in ENGINE_ALIASES.values():
        entries: list[Alias] = [*aliases.gauges, *aliases.totals]
        named = {key.split("{")[0] for alias in entries for key in (*alias.ours, *alias.minus)}
        assert named <= {*GAUGE_TEXTS, *TOTAL_TEXTS}
        assert {alias.ours for alias in aliases.histograms} <= set(HISTOGRAM_TEXTS)


def test_a_name_has_one_type_only() -> None:
    for aliases in ENGINE_ALIASES.values():
        kinds = [{alias.name for alias in part} for part in (aliases.gauges, aliases.totals, aliases.histograms)]
        assert sum(map(len, kinds)) == len(set().union(*kinds))
