"""The content of the Grafana dashboard: rows of panels and their queries, as tables.

Ratios and quantiles over several servers are computed from sums, never from averages.
"""

from __future__ import annotations

from dataclasses import dataclass

SELECTED = 'instance=~"$instance",model_name=~"$model_name"'

FULL = 'pool="full"'
NEVER = 'le="0.0"'
ERRORS = 'status_code=~"5.."'
SERVED = 'endpoint!="/metrics"'

Query = tuple[str, str]  # legend, expression


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        unit: Grafana's name of the unit.
        kind: "timeseries", "stacked" or "heatmap".
    """

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"


def series(name: str, more: str = "") -> str:
    """A metric of the selected servers and models."""
    return f"ebbtide:{name}{{{SELECTED}{',' if more else ''}{more}}}"


def rate(name: str, more: str = "") -> str:
    """Events per second of a counter."""
    return f"rate({series(name, more)}[$__rate_interval])"


def gauge(name: str, legend: str, more: str = "") -> Query:
    """A gauge, per server."""
    return f"{legend} {{{{instance}}}}".strip(), f"sum by (instance) ({series(name, more)})"


def per_second(name: str, legend: str) -> Query:
    """The rate of a counter, per server."""
    return f"{legend} {{{{instance}}}}".strip(), f"sum by (instance) ({rate(name)})"


def split(name: str, label: str, more: str = "") -> Query:
    """The rate of a counter over all servers, per value of a label."""
    return f"{{{{{label}}}}}", f"sum by ({label}) ({rate(name, more)})"


def quantiles(name: str, *, mean: bool = True) -> tuple[Query, ...]:
    """Percentiles and mean of a histogram over all servers."""
    found = [
        (f"p{percent}", f"histogram_quantile(0.{percent}, sum by (le) ({rate(f'{name}_bucket')}))")
        for percent in (50, 90, 95, 99)
    ]
    if mean:
        found.append(("mean", f"sum({rate(f'{name}_sum')}) / sum({rate(f'{name}_count')})"))
    return tuple(found)


def latency(title: str, name: str, text: str) -> Panel:
    """A panel with percentiles and mean of a duration."""
    return Panel(title, text, "s", quantiles(name))


def heatmap(title: str, name: str, unit: str, text: str) -> Panel:
    """A panel with the distribution of a histogram over time."""
    return Panel(title, text, unit, (("{{le}}", f"sum by (le) ({rate(f'{name}_bucket')})"),), "heatmap")


OWNERS = {
    "available": "free",
    "evictable": "prefix cache, evictable",
    "protected": "prefix cache, in use",
    "uncached": "requests, uncached",
    "session_held": "held by sessions",
    "quarantined": "quarantined",
}

ROWS: dict[str, tuple[Panel, ...]] = {
    "Memory pressure": (
        Panel(
            "Retractions",
            "Running requests that were requeued to free memory, and retracted requests that run again.",
            "reqps",
            (
                per_second("num_retracted_requests_total", "retracted"),
                per_second("num_resumed_requests_total", "resumed"),
                per_second("num_preempted_requests_total", "preempted"),
            ),
        ),
        Panel(
            "Retracted now",
            "Requests that were retracted and do not run again yet. Returns to 0 when the load ends.",
            "short",
            (gauge("num_retracted_reqs", ""),),
        ),
        latency("Time until resumed", "retract_resume_seconds", "Time from a retraction until the request runs again."),
        Panel(
            "New-token ratio",
            "Share of the remaining output that admission reserves memory for. Retractions raise it.",
            "percentunit",
            (gauge("new_token_ratio", ""),),
        ),
        Panel(
            "KV pool by owner",
            "Tokens of pages by owner. The sum is the pool.",
            "short",
            tuple((legend, f"sum({series(f'kv_{part}_tokens', FULL)})") for part, legend in OWNERS.items()),
            "stacked",
        ),
        Panel(
            "Aborted requests by reason",
            "Requests that were aborted, refused, or whose client disconnected.",
            "reqps",
            (split("num_aborted_requests_total", "reason"),),
        ),
        Panel(
            "Share of retracted requests",
            "Share of the ended requests that were retracted at least once.",
            "percentunit",
            (
                (
                    "share",
                    f"1 - sum({rate('retractions_per_request_bucket', NEVER)})"
                    f" / sum({rate('retractions_per_request_count')})",
                ),
            ),
        ),
        Panel(
            "Recomputed, restored and evicted tokens",
            "Tokens recomputed after a retraction, restored from host memory, and evicted from the prefix cache.",
            "short",
            (
                per_second("num_recomputed_tokens_total", "recomputed"),
                per_second("kv_restored_tokens_total", "restored"),
                per_second("evicted_tokens_total", "evicted"),
            ),
        ),
        Panel(
            "Sessions",
            "Open streaming sessions, and the tokens of KV that they hold between their turns.",
            "short",
            (
                gauge("num_streaming_sessions", "sessions"),
                gauge("streaming_session_held_tokens", "tokens held"),
            ),
        ),
        Panel(
            "Invariant violations",
            "Violations of the page accounting so far: any value but 0 is a bug.",
            "short",
            (
                gauge("kv_invariant_violations_total", "violations"),
                gauge("kv_quarantined_tokens", "quarantined tokens", FULL),
            ),
        ),
        Panel(
            "Time without progress",
            "Seconds since a token, the end of a request or a first-time prefill, while there is work.",
            "s",
            (gauge("watchdog_last_progress_seconds", ""),),
        ),
        Panel(
            "Nothing admitted",
            "Times that requests waited and none was admitted for --progress-alarm seconds.",
            "short",
            (gauge("admission_alarms_total", ""),),
        ),
    ),
    "Load": (
        Panel(
            "Running and waiting",
            "Requests in the batch and in the queue.",
            "short",
            (
                gauge("num_running_reqs", "running"),
                gauge("num_queue_reqs", "waiting"),
                gauge("num_grammar_queue_reqs", "waiting for a grammar"),
            ),
        ),
        Panel(
            "Tokens per second",
            "Prompt tokens of requests that started, and output tokens.",
            "short",
            (per_second("prompt_tokens_total", "prompt"), per_second("generation_tokens_total", "output")),
        ),
        Panel(
            "KV cache use",
            "Share of the pool that is neither free nor evictable.",
            "percentunit",
            (("{{instance}}", f"max by (instance) ({series('token_usage')})"),),
        ),
        Panel(
            "Requests by finish reason",
            "Requests that ended normally.",
            "reqps",
            (split("num_requests_total", "finish_reason"),),
        ),
        Panel(
            "Prefix-cache hit rate",
            "Share of prompt tokens that were cached when their request first ran.",
            "percentunit",
            (("hit rate", f"sum({rate('cached_tokens_total')}) / sum({rate('prompt_tokens_total')})"),),
        ),
        Panel(
            "Servers up",
            "Servers with a running engine.",
            "short",
            (("up", f"count({series('max_total_num_tokens')} > 0)"),),
        ),
        latency("Scheduler step", "scheduler_step_seconds", "One iteration of the scheduler loop with its forward."),
        Panel(
            "Tokens per step",
            "Number of tokens in a step.",
            "short",
            quantiles("scheduler_step_tokens"),
        ),
        Panel(
            "Output tokens per second now",
            "Over the last tenth of a second; 0 when idle.",
            "short",
            (gauge("gen_throughput", ""),),
        ),
    ),
    "Latency": (
        latency("Time to first token", "time_to_first_token_seconds", "From an HTTP request's arrival."),
        latency("Inter-token latency", "inter_token_latency_seconds", "Between two tokens of a choice."),
        latency("End to end", "e2e_request_latency_seconds", "From an HTTP request's arrival to its last token."),
        latency("Time per output token", "time_per_output_token_seconds", "A request's mean after its first token."),
        latency("Queue time", "queue_time_seconds", "Until a request first ran."),
        latency("Prefill time", "prefill_time_seconds", "From a request's first run to its first token."),
        latency("Decode time", "decode_time_seconds", "From a request's first token to its end."),
        heatmap("Time to first token, heatmap", "time_to_first_token_seconds", "s", "From an HTTP request's arrival."),
        heatmap("End to end, heatmap", "e2e_request_latency_seconds", "s", "From an HTTP request's arrival."),
    ),
    "Requests": (
        heatmap("Prompt length", "request_prompt_tokens", "short", "Tokens of requests that ended normally."),
        heatmap("Output length", "request_generation_tokens", "short", "Tokens of requests that ended normally."),
        heatmap(
            "Output limit",
            "request_params_max_tokens",
            "short",
            "max_tokens, or what context and pool hold.",
        ),
        Panel(
            "Choices per prompt",
            "Mean of n.",
            "short",
            (("mean n", f"sum({rate('request_params_n_sum')}) / sum({rate('request_params_n_count')})"),),
        ),
        latency(
            "Grammar compilation", "grammar_compilation_time_seconds", "Time to compile grammars that were not cached."
        ),
        Panel(
            "Retractions per request",
            "Percentiles over the requests that ended.",
            "short",
            quantiles("retractions_per_request"),
        ),
    ),
    "HTTP": (
        Panel(
            "Responses by status",
            "All routes.",
            "reqps",
            (split("http_responses_total", "status_code"),),
        ),
        Panel(
            "Requests by endpoint",
            "Unknown paths are counted as other.",
            "reqps",
            (split("http_requests_total", "endpoint", SERVED),),
        ),
        Panel(
            "Share of server errors",
            "Responses with a 5xx status.",
            "percentunit",
            (
                (
                    "share",
                    f"(sum({rate('http_responses_total', ERRORS)}) or vector(0)) / sum({rate('http_responses_total')})",
                ),
            ),
        ),
        Panel(
            "Open requests",
            "HTTP requests whose response is not complete.",
            "short",
            (("{{endpoint}}", f"sum by (endpoint) ({series('http_requests_active', SERVED)})"),),
        ),
    ),
}
