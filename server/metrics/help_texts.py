"""What each series of /metrics means, in one sentence. Names come without the prefix; most are the scheduler's."""

from __future__ import annotations

from itertools import takewhile

PREFIX = "ebbtide:"

GAUGE_TEXTS = {
    "num_running_reqs": "Requests that hold a row of the runner now; every choice of n counts.",
    "num_queue_reqs": "Requests that wait to run, new and retracted ones.",
    "num_retracted_reqs": "Requests that were retracted under memory pressure and do not run again yet.",
    "num_grammar_queue_reqs": "Requests whose grammar is being compiled; they wait to run without holding others up.",
    "new_token_ratio": "Share of the output still allowed that admission reserves memory for; pressure raises it.",
    "token_usage": "Share of the KV pool that is neither free nor evictable, from 0 to 1.",
    "max_total_num_tokens": "Size of the KV pool in tokens.",
    "page_size": "Tokens in a page of the KV pool.",
    "kv_available_tokens": "Tokens of free pages in the pool.",
    "kv_evictable_tokens": "Tokens of prefix-cache pages that nobody uses and that are given up when room is needed.",
    "kv_protected_tokens": "Tokens of prefix-cache pages that running requests stand on.",
    "kv_session_held_tokens": "Tokens of pages that streaming sessions hold between their turns.",
    "kv_uncached_tokens": "Tokens of pages that a request holds alone and that are not in the prefix cache.",
    "kv_quarantined_tokens": "Tokens of pages taken out of service because the books disagreed about them.",
    "cache_hit_rate": "Share of all prompt tokens so far that the prefix cache had when their request first ran.",
    "gen_throughput": "Output tokens per second since the last snapshot; 0 when idle.",
    "num_streaming_sessions": "Streaming sessions that are open.",
    "streaming_session_held_tokens": "Tokens of KV that all streaming sessions hold.",
    "watchdog_last_progress_seconds": "Seconds since a token, a finish or a first-time prefill was last seen.",
    "open_http_requests": "HTTP requests for generated text that are not fully answered yet.",
    "http_requests_active": "HTTP requests of any kind that are open, by endpoint and method; a scrape is one.",
}

TOTAL_TEXTS = {
    "num_retracted_requests_total": "Times that a running request was sent back to the queue to free memory.",
    "num_retracted_input_tokens_total": "Prompt tokens of the requests that were retracted, each time anew.",
    "num_retracted_output_tokens_total": "Output tokens that retracted requests had made by then; none is lost.",
    "num_recomputed_tokens_total": "Tokens whose KV was computed again because their request had been retracted.",
    "kv_offloaded_tokens_total": "Tokens whose KV went to the host tier when their request was retracted.",
    "kv_restored_tokens_total": "Tokens whose KV came back from the host tier and was not computed again.",
    "num_resumed_requests_total": "Times that a retracted request began to run again.",
    "num_ended_while_retracted_total": "Requests that ended before they ran again after a retraction, by reason.",
    "num_preempted_requests_total": "Times that a running request gave way to one of strictly higher priority.",
    "num_aborted_requests_total": "Requests that ended early, by reason.",
    "num_requests_total": "Requests that ended normally, by finish reason; every choice of n counts.",
    "prompt_tokens_total": "Prompt tokens of the requests that began to run, counted once per request.",
    "cached_tokens_total": "Prompt tokens that the prefix cache had when their request first ran.",
    "generation_tokens_total": "Output tokens made.",
    "evicted_tokens_total": "Tokens of pages that the prefix cache gave up to make room.",
    "admission_alarms_total": "Times that requests waited and none was admitted for --progress-alarm seconds.",
    "http_requests_total": "HTTP requests that came, by endpoint (a route's template, or other) and method.",
    "http_responses_total": "HTTP answers that began, by endpoint, status and method; who left before has none.",
    "kv_invariant_violations_total": "Times that the memory books did not balance; anything but 0 is a bug.",
}

HISTOGRAM_TEXTS = {
    "time_to_first_token_seconds": "Time from the arrival of an HTTP request to its first output token.",
    "inter_token_latency_seconds": "Time between two output tokens of a choice as the front sees them.",
    "e2e_request_latency_seconds": "Time from the arrival of an HTTP request to the end of its last choice.",
    "queue_time_seconds": "Time from the arrival of a request in the scheduler until it first ran.",
    "grammar_compilation_time_seconds": "Time that the scheduler's compiler took for a grammar that it did not know.",
    "prefill_time_seconds": "Time from a request's first run to its first output token.",
    "decode_time_seconds": "Time from a request's first output token to its normal end, retractions included.",
    "inference_time_seconds": "Time from a request's first run to its normal end, retractions included.",
    "time_per_output_token_seconds": "A request's decode time for each output token after the first.",
    "scheduler_step_seconds": "Time of one turn of the scheduler's loop that collected a result.",
    "scheduler_step_tokens": "Tokens that a step computed, of prompts and outputs; recomputed ones count again.",
    "request_prompt_tokens": "Prompt tokens of a request that ended normally.",
    "request_generation_tokens": "Output tokens of a request that ended normally.",
    "request_params_n": "How many choices of a prompt were asked for.",
    "request_params_max_tokens": "How many output tokens were allowed; without max_tokens, the rest of the context.",
    "retractions_per_request": "How often a request had been retracted when it ended.",
    "retract_resume_seconds": "Time from a request's retraction until it ran again.",
}

# Series with a label exist from the start with these values, so that their first event shows as a rise.
KNOWN_LABELS = (
    "num_requests_total{finish_reason=stop}",
    "num_requests_total{finish_reason=length}",
    "num_aborted_requests_total{reason=client}",
    "num_aborted_requests_total{reason=aborted}",
    "num_aborted_requests_total{reason=timeout}",
    "num_aborted_requests_total{reason=kv_cache_exhausted}",
    "num_aborted_requests_total{reason=queue_full}",
    "num_aborted_requests_total{reason=grammar_failed}",
    "num_ended_while_retracted_total{reason=stop}",
    "num_ended_while_retracted_total{reason=client}",
    "num_ended_while_retracted_total{reason=kv_cache_exhausted}",
)

# The labels of a series besides model_name.
LABELS: dict[str, tuple[str, ...]] = {
    **{name: ("pool",) for name in GAUGE_TEXTS if name.startswith("kv_")},
    "num_requests_total": ("finish_reason",),
    "num_aborted_requests_total": ("reason",),
    "num_ended_while_retracted_total": ("reason",),
    "http_requests_active": ("endpoint", "method"),
    "http_requests_total": ("endpoint", "method"),
    "http_responses_total": ("endpoint", "status_code", "method"),
}

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000, 2560)
# A retraction costs a step at least, and at most what a long queue in front of a protected request costs.
RESUME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
COUNT_BUCKETS = (0, 1, 2, 3, 4, 5, 8, 16, 32)
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
BUCKETS: dict[str, tuple[float, ...]] = {
    "retractions_per_request": COUNT_BUCKETS,
    "retract_resume_seconds": RESUME_BUCKETS,
    "scheduler_step_tokens": STEP_TOKEN_BUCKETS,
    "request_params_n": CHOICE_BUCKETS,
}
SIZES = ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens")


def help_text(name: str) -> str:
    """The sentence of a series; of one that this version does not know, its name in words."""
    known = GAUGE_TEXTS.get(name) or TOTAL_TEXTS.get(name) or HISTOGRAM_TEXTS.get(name)
    return known or f"{name.replace('_', ' ').capitalize()}."


def bucket_bounds(name: str, context_length: int) -> tuple[float, ...]:
    """The upper bounds of a histogram of ours, without infinity."""
    return size_buckets(context_length) if name in SIZES else BUCKETS.get(name, LATENCY_BUCKETS)


def size_buckets(context_length: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to the longest request there can be."""
    steps = (digit * 10.0**power for power in range(9) for digit in (1, 2, 5))
    return tuple(takewhile(lambda bound: bound <= context_length, steps))
