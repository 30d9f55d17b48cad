"""What the Grafana dashboard shows: rows of panels and their queries, as tables.

Ratios and quantiles of several servers are made of their sums, never of averages.
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
    """One panel. kind: "timeseries", "stacked" or "heatmap". unit: Grafana's name for it."""

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
    """A gauge of each server."""
    return f"{legend} {{{{instance}}}}".strip(), f"sum by (instance) ({series(name, more)})"


def per_second(name: str, legend: str) -> Query:
    """A counter of each server as a rate."""
    return f"{legend} {{{{instance}}}}".strip(), f"sum by (instance) ({rate(name)})"


def split(name: str, label: str, more: str = "") -> Query:
    """A counter of all servers as rates, one for each value of a label."""
    return f"{{{{{label}}}}}", f"sum by ({label}) ({rate(name, more)})"


def quantiles(name: str, *, mean: bool = True) -> tuple[Query, ...]:
    """Percentiles of a histogram over all servers, and its mean."""
    found = [
        (f"p{percent}", f"histogram_quantile(0.{percent}, sum by (le) ({rate(f'{name}_bucket')}))")
        for percent in (50, 90, 95, 99)
    ]
    if mean:
        found.append(("mean", f"sum({rate(f'{name}_sum')}) / sum({rate(f'{name}_count')})"))
    return tuple(found)


def latency(title: str, name: str, text: str) -> Panel:
    """Percentiles and mean of a time."""
    return Panel(title, text, "s", quantiles(name))


def heatmap(title: str, name: str, unit: str, text: str) -> Panel:
    """How often a histogram's values came."""
    return Panel(title, text, unit, (("{{le}}", f"sum by (le) ({rate(f'{name}_bucket')})"),), "heatmap")


HOLDERS = {
    "available": "free",
    "evictable": "prefix cache, evictable",
    "protected": "prefix cache, in use",
    "uncached": "requests alone",
    "session_held": "held by sessions",
    "quarantined": "quarantined",
}

ROWS: dict[str, tuple[Panel, ...]] = {
    "Memory pressure": (
        Panel(
            "Retractions",
            "Running requests that went back to the queue to free memory, and retracted ones that run again.",
            "reqps",
            (
                per_second("num_retracted_requests_total", "retracted"),
                per_second("num_resumed_requests_total", "resumed"),
                per_second("num_preempted_requests_total", "for a higher priority"),
            ),
        ),
        Panel(
            "Retracted now",
            "Requests that were retracted and do not run again yet. It goes back to 0 when the load is over.",
            "short",
            (gauge("num_retracted_reqs", ""),),
        ),
        latency("Time until resumed", "retract_resume_seconds", "How long retracted requests were away."),
        Panel(
            "New-token ratio",
            "Share of the output still allowed that admission reserves memory for. Retractions raise it.",
            "percentunit",
            (gauge("new_token_ratio", ""),),
        ),
        Panel(
            "KV pool by holder",
            "Tokens of pages, by who holds them: together they are the pool.",
            "short",
            tuple((legend, f"sum({series(f'kv_{part}_tokens', FULL)})") for part, legend in HOLDERS.items()),
            "stacked",
        ),
        Panel(
            "Early ends by reason",
            "Requests that were given up, turned away or left by their clients.",
            "reqps",
            (split("num_aborted_requests_total", "reason"),),
        ),
        Panel(
            "Requests that were retracted",
            "Share of the requests that ended which had been retracted at least once.",
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
            "Work done again",
            "Tokens computed anew after a retraction, copied back from host memory instead, and given up by the cache.",
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
            "Books that did not balance",
            "Violations of the memory invariant so far: anything but 0 is a bug.",
            "short",
            (
                gauge("kv_invariant_violations_total", "violations"),
                gauge("kv_quarantined_tokens", "tokens out of service", FULL),
            ),
        ),
        Panel(
            "Time without progress",
            "Seconds since a token, an end or a first-time prefill, while there is work.",
            "s",
            (gauge("watchdog_last_progress_seconds", ""),),
        ),
        Panel(
            "Nobody admitted",
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
            "Prompt tokens of requests that began, and output tokens.",
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
            "Share of prompt tokens that the cache had when their request first ran.",
            "percentunit",
            (("hit rate", f"sum({rate('cached_tokens_total')}) / sum({rate('prompt_tokens_total')})"),),
        ),
        Panel(
            "Servers up",
            "Servers that have an engine.",
            "short",
            (("up", f"count({series('max_total_num_tokens')} > 0)"),),
        ),
        latency("Scheduler step", "scheduler_step_seconds", "One turn of the scheduler's loop with its forward."),
        Panel(
            "Tokens per step",
            "How full the steps are.",
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
            "Longest output allowed",
            "request_params_max_tokens",
            "short",
            "max_tokens, or else what the context leaves.",
        ),
        Panel(
            "Choices of a prompt",
            "The mean of n.",
            "short",
            (("mean n", f"sum({rate('request_params_n_sum')}) / sum({rate('request_params_n_count')})"),),
        ),
        latency("Grammar compilation", "grammar_compilation_time_seconds", "Of grammars that were not known yet."),
        Panel(
            "Retractions per request",
            "Percentiles over the requests that ended.",
            "short",
            quantiles("retractions_per_request"),
        ),
    ),
    "HTTP": (
        Panel(
            "Answers by status",
            "Of every route.",
            "reqps",
            (split("http_responses_total", "status_code"),),
        ),
        Panel(
            "Requests by endpoint",
            "Paths that are no route are called other.",
            "reqps",
            (split("http_requests_total", "endpoint", SERVED),),
        ),
        Panel(
            "Share of server errors",
            "Answers with a 5xx status.",
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
            "HTTP requests that are not fully answered.",
            "short",
            (("{{endpoint}}", f"sum by (endpoint) ({series('http_requests_active', SERVED)})"),),
        ),
    ),
}
