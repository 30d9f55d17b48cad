"""vLLM's and SGLang's metric names, labels and buckets, so that their dashboards work with ebbtide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .help_texts import STEP_TOKEN_BUCKETS, size_buckets

Bounds = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """A gauge or counter whose value is the sum of ``ours`` minus the sum of ``minus``.

    A name without its label stands for the sum over all values of the label.
    """

    name: str
    ours: tuple[str, ...]
    minus: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HistogramAlias:
    """A histogram with the samples of ebbtide's histogram ``ours``."""

    name: str
    ours: str
    bounds: Callable[[int], Bounds]  # called with the context length; returns the upper bounds of the buckets
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MetricAliases:
    """The metric names of one engine."""

    prefix: str
    labels: tuple[tuple[str, str], ...]  # labels of every series in addition to model_name
    gauges: tuple[Alias, ...]
    totals: tuple[Alias, ...]
    histograms: tuple[HistogramAlias, ...]
    includes_http: bool = False  # True if HTTP request counts are exported too
    cache_info: str | None = None  # name of a constant gauge with page size and page count as labels


def _fixed(*bounds: float) -> Callable[[int], Bounds]:
    return lambda _: bounds


ENGINE_FAULTS = (
    "num_aborted_requests_total{reason=kv_cache_exhausted}",
    "num_aborted_requests_total{reason=engine_dead}",
)
ADMISSION_REJECTIONS = (
    "num_aborted_requests_total{reason=queue_full}",
    "num_aborted_requests_total{reason=context_length_exceeded}",
)

VLLM_TTFT = _fixed(
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
VLLM_TOKEN_GAP = _fixed(
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
)
VLLM_LATENCY = _fixed(
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

VLLM = MetricAliases(
    prefix="vllm:",
    labels=(("engine", "0"),),
    gauges=(
        Alias("num_requests_running", ("num_running_reqs",)),
        Alias("num_requests_waiting", ("num_queue_reqs",)),
        Alias("kv_cache_usage_perc", ("token_usage",)),
        Alias("gpu_cache_usage_perc", ("token_usage",)),  # the older name
    ),
    totals=(
        Alias("prompt_tokens_total", ("prompt_tokens_total",)),
        Alias("prompt_tokens_cached_total", ("cached_tokens_total",)),
        Alias("generation_tokens_total", ("generation_tokens_total",)),
        Alias("prefix_cache_queries_total", ("prompt_tokens_total",)),
        Alias("prefix_cache_hits_total", ("cached_tokens_total",)),
        Alias("num_preemptions_total", ("num_retracted_requests_total",)),
        *(
            Alias(
                "request_success_total",
                (f"num_requests_total{{finish_reason={reason}}}",),
                labels=(("finished_reason", reason),),
            )
            for reason in ("stop", "length")
        ),
        Alias(
            "request_success_total",
            ("num_aborted_requests_total",),
            minus=(*ENGINE_FAULTS, *ADMISSION_REJECTIONS),
            labels=(("finished_reason", "abort"),),
        ),
        Alias("request_success_total", ENGINE_FAULTS, labels=(("finished_reason", "error"),)),
        *(
            Alias("admission_rejections_total", (key,), labels=(("reason", key.split("=")[1].rstrip("}")),))
            for key in ADMISSION_REJECTIONS
        ),
    ),
    histograms=(
        HistogramAlias("time_to_first_token_seconds", "time_to_first_token_seconds", VLLM_TTFT),
        HistogramAlias("inter_token_latency_seconds", "inter_token_latency_seconds", VLLM_TOKEN_GAP),
        HistogramAlias("time_per_output_token_seconds", "inter_token_latency_seconds", VLLM_TOKEN_GAP),  # older name
        HistogramAlias("request_time_per_output_token_seconds", "time_per_output_token_seconds", VLLM_TOKEN_GAP),
        HistogramAlias("e2e_request_latency_seconds", "e2e_request_latency_seconds", VLLM_LATENCY),
        HistogramAlias("request_queue_time_seconds", "queue_time_seconds", VLLM_LATENCY),
        HistogramAlias("request_prefill_time_seconds", "prefill_time_seconds", VLLM_LATENCY),
        HistogramAlias("request_decode_time_seconds", "decode_time_seconds", VLLM_LATENCY),
        HistogramAlias("request_inference_time_seconds", "inference_time_seconds", VLLM_LATENCY),
        HistogramAlias("request_prompt_tokens", "request_prompt_tokens", size_buckets),
        HistogramAlias("request_generation_tokens", "request_generation_tokens", size_buckets),
        HistogramAlias("request_params_n", "request_params_n", _fixed(1, 2, 5, 10, 20)),
        HistogramAlias("request_params_max_tokens", "request_params_max_tokens", size_buckets),
        HistogramAlias("iteration_tokens_total", "scheduler_step_tokens", _fixed(*STEP_TOKEN_BUCKETS)),
    ),
    cache_info="cache_config_info",
)

SGLANG_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
SGLANG_TOKEN_GAP = _fixed(
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1),
    *(0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
SGLANG_QUEUE = _fixed(
    *(0, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500, 600),
    *(700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000),
)
SGLANG_SIZES = _fixed(
    *(100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12000, 15000, 20000),
    *(22000, 25000, 30000, 35000, 40000, 66000, 99000, 132000, 300000, 600000, 900000, 1100000),
)
SGLANG_GRAMMAR = _fixed(0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 90, 120, 240)
SGLANG_STAGE = _fixed(*(round(0.001 * 1.62**step, 6) for step in range(30)))

# Names that differ from ebbtide's only in the prefix.
SAME_GAUGES = (
    *("num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "new_token_ratio", "token_usage"),
    *("max_total_num_tokens", "page_size", "cache_hit_rate", "gen_throughput"),
    *("num_streaming_sessions", "streaming_session_held_tokens", "num_grammar_queue_reqs"),
)
SAME_TOTALS = (
    *("prompt_tokens_total", "cached_tokens_total", "generation_tokens_total", "evicted_tokens_total"),
    *("num_retracted_requests_total", "num_retracted_input_tokens_total", "num_retracted_output_tokens_total"),
    *("num_requests_total", "num_aborted_requests_total"),
)
FREE_TOKENS = ("kv_available_tokens{pool=full}", "kv_evictable_tokens{pool=full}")

SGLANG = MetricAliases(
    prefix="sglang:",
    labels=(("engine_type", "unified"), ("tp_rank", "0"), ("pp_rank", "0")),
    gauges=(
        *(Alias(name, (name,)) for name in SAME_GAUGES),
        Alias("num_used_tokens", ("max_total_num_tokens",), minus=FREE_TOKENS),
        Alias("kv_available_tokens", FREE_TOKENS[:1]),
        Alias("kv_evictable_tokens", FREE_TOKENS[1:]),
    ),
    totals=tuple(Alias(name, (name,)) for name in SAME_TOTALS),
    histograms=(
        HistogramAlias("time_to_first_token_seconds", "time_to_first_token_seconds", _fixed(*SGLANG_TTFT)),
        HistogramAlias("inter_token_latency_seconds", "inter_token_latency_seconds", SGLANG_TOKEN_GAP),
        HistogramAlias(
            "e2e_request_latency_seconds", "e2e_request_latency_seconds", _fixed(*SGLANG_TTFT, 600, 1200, 1800, 2400)
        ),
        HistogramAlias("queue_time_seconds", "queue_time_seconds", SGLANG_QUEUE),
        *(
            HistogramAlias(
                "per_stage_req_latency_seconds", f"{stage}_time_seconds", SGLANG_STAGE, (("stage", f"{stage}_forward"),)
            )
            for stage in ("prefill", "decode")
        ),
        HistogramAlias("grammar_compilation_time_seconds", "grammar_compilation_time_seconds", SGLANG_GRAMMAR),
        HistogramAlias("prompt_tokens_histogram", "request_prompt_tokens", SGLANG_SIZES),
        HistogramAlias("generation_tokens_histogram", "request_generation_tokens", SGLANG_SIZES),
        HistogramAlias(
            "num_retractions", "retractions_per_request", _fixed(*range(11), 15, 20, 25, 30, 40, 50, 75, 100)
        ),
    ),
    includes_http=True,
)

ENGINE_ALIASES = {"vllm": VLLM, "sglang": SGLANG}
