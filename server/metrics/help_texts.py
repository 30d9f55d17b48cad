"""The help text, labels and buckets of each series of /metrics. The names in this module have no prefix."""

from __future__ import annotations

from itertools import takewhile

PREFIX = "ebbtide:"

GAUGE_TEXTS = {
    "num_running_reqs": "Running requests, each with a row of the model runner. An HTTP request with n choices counts "
    "as n.",
    "num_queue_reqs": "Waiting requests, new and retracted.",
    "num_retracted_reqs": "Requests that were retracted under memory pressure and are not running again yet.",
    "num_grammar_queue_reqs": "Requests that are waiting until their grammar is compiled; they do not block others.",
    "new_token_ratio": "Tokens reserved for the growth of running requests per output token that they may generate.",
    "token_usage": "Share of the KV pool that is neither free nor evictable, 0 to 1; with several pools, the maximum.",
    "kv_pool_usage": "Share of one KV pool (not the host tier) that is neither free nor evictable, from 0 to 1.",
    "max_total_num_tokens": "Size of the KV pool in tokens.",
    "page_size": "Number of tokens per page of the KV pool.",
    "kv_available_tokens": "Free tokens of the pool.",
    "kv_evictable_tokens": "Tokens of prefix-cache pages that no running request uses and that can be evicted.",
    "kv_protected_tokens": "Tokens of prefix-cache pages that running requests use.",
    "kv_session_held_tokens": "Tokens of pages that streaming sessions hold between their turns.",
    "kv_uncached_tokens": "Tokens of pages that belong to one request and are not in the prefix cache.",
    "kv_quarantined_tokens": "Tokens of the pages that were quarantined (no longer used) after an accounting mismatch.",
    "cache_hit_rate": "Share of all prompt tokens so far that were in the prefix cache when their request first ran.",
    "expected_queue_seconds": "Seconds until all waiting requests have started, at the current rate; 0 if unknown.",
    "gen_throughput": "Output tokens per second since the last snapshot; 0 when idle.",
    "num_streaming_sessions": "Open streaming sessions.",
    "streaming_session_held_tokens": "KV tokens held by all streaming sessions.",
    "watchdog_last_progress_seconds": "Seconds since the last generated token, finished request or first-time prefill.",
    "open_http_requests": "Open HTTP requests for generated text.",
    "http_requests_active": "Open HTTP requests of any kind, by endpoint and method, including the scrape itself.",
}

TOTAL_TEXTS = {
    "num_received_requests_total": "Requests that the scheduler received or the front process refused as too long. "
    "An HTTP request with n choices counts as n.",
    "num_retracted_requests_total": "Retractions: running requests that were requeued to free memory.",
    "num_retracted_input_tokens_total": "Prompt tokens of retracted requests, counted at each retraction.",
    "num_retracted_output_tokens_total": "Output tokens of retracted requests, counted at each retraction.",
    "num_recomputed_tokens_total": "Tokens whose KV was recomputed after a retraction.",
    "num_delayed_rows_total": "Decode rows that waited one step for memory that other requests were about to free.",
    "kv_offloaded_tokens_total": "Tokens whose KV was copied to the host tier at a retraction.",
    "kv_restored_tokens_total": "Tokens whose KV was restored from the host tier instead of being recomputed.",
    "num_resumed_requests_total": "Retracted requests that started running again, once per retraction.",
    "num_ended_while_retracted_total": "Retracted requests that ended before they ran again, by reason.",
    "num_preempted_requests_total": "Running requests that were preempted for a request of strictly higher priority.",
    "num_aborted_requests_total": "Requests that ended early, by reason.",
    "num_requests_total": "Requests that ended normally, by finish reason. An HTTP request with n choices counts as n.",
    "prompt_tokens_total": "Prompt tokens of requests that started running, counted once per request.",
    "cached_tokens_total": "Prompt tokens that were in the prefix cache when their request first ran.",
    "generation_tokens_total": "Generated output tokens.",
    "embedding_requests_total": "Answered HTTP requests for embeddings or scores, including those to the chat model.",
    "embedding_inputs_total": "Texts, or pairs of texts, of the answered requests for embeddings or scores.",
    "embedding_tokens_total": "Tokens of the answered requests for embeddings or scores.",
    "evicted_tokens_total": "Tokens of evicted prefix-cache pages.",
    "admission_alarms_total": "Warnings that requests were waiting for --progress-alarm seconds and none was admitted.",
    "trace_spans_exported_total": "Spans that the OpenTelemetry collector of --otlp-endpoint accepted.",
    "trace_spans_dropped_total": "Spans that were dropped because the queue was full or the collector did not accept "
    "them in time.",
    "http_requests_total": "Received HTTP requests, by endpoint (the route template, or other) and method.",
    "http_responses_total": "Started HTTP responses, by endpoint, status and method. Clients that "
    "disconnect before the response are not counted.",
    "num_invalid_logits_total": "Requests aborted because of invalid logits: NaN, infinite, or no token to sample.",
    "kv_invariant_violations_total": "Violations found by the memory invariant checker; a value above 0 means a bug.",
}

HISTOGRAM_TEXTS = {
    "time_to_first_token_seconds": "Time from the arrival of an HTTP request to its first output token.",
    "inter_token_latency_seconds": "Time between two output tokens of a choice, measured in the front process.",
    "e2e_request_latency_seconds": "Time from the arrival of an HTTP request to the end of its last choice.",
    "queue_time_seconds": "Time from the arrival of a request in the scheduler until it first runs.",
    "grammar_compilation_time_seconds": "Compilation time of a grammar that was not cached.",
    "prefill_time_seconds": "Time from a request's first run to its first output token.",
    "decode_time_seconds": "Time from a request's first output token to its normal end, retractions included.",
    "inference_time_seconds": "Time from a request's first run to its normal end, retractions included.",
    "time_per_output_token_seconds": "A request's decode time for each output token after the first.",
    "embedding_batch_inputs": "Number of texts, or of pairs of texts, in a batch of the embedding model.",
    "embedding_batch_seconds": "Time that the embedding model needed for a batch.",
    "scheduler_step_seconds": "Duration of a scheduler loop iteration that collected a step's result.",
    "scheduler_step_tokens": "Prompt and output tokens computed per step; recomputed tokens are counted again.",
    "request_prompt_tokens": "Prompt tokens of a request that ended normally.",
    "request_generation_tokens": "Output tokens of a request that ended normally.",
    "request_params_n": "Requested number of choices per prompt (n).",
    "request_params_max_tokens": "Maximum number of output tokens; without max_tokens, the limit of context and pool.",
    "retractions_per_request": "Number of retractions of a request, observed at its end.",
    "retract_resume_seconds": "Time from a request's retraction until it runs again.",
}

# Labelled series that are exported with 0 from the start, so that the first event is visible as an increase.
KNOWN_LABELS = (
    "num_requests_total{finish_reason=stop}",
    "num_requests_total{finish_reason=length}",
    "num_aborted_requests_total{reason=client}",
    "num_aborted_requests_total{reason=aborted}",
    "num_aborted_requests_total{reason=timeout}",
    "num_aborted_requests_total{reason=kv_cache_exhausted}",
    "num_aborted_requests_total{reason=queue_full}",
    "num_aborted_requests_total{reason=grammar_failed}",
    "num_aborted_requests_total{reason=internal_error}",
    "num_aborted_requests_total{reason=model_output_invalid}",
    "num_ended_while_retracted_total{reason=stop}",
    "num_ended_while_retracted_total{reason=client}",
    "num_ended_while_retracted_total{reason=kv_cache_exhausted}",
)

# The labels of each series in addition to model_name.
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
# A retracted request runs again after one step at the earliest; a protected request may wait in a long queue.
RESUME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
COUNT_BUCKETS = (0, 1, 2, 3, 4, 5, 8, 16, 32)
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
BUCKETS: dict[str, tuple[float, ...]] = {
    "retractions_per_request": COUNT_BUCKETS,
    "retract_resume_seconds": RESUME_BUCKETS,
    "scheduler_step_tokens": STEP_TOKEN_BUCKETS,
    "request_params_n": CHOICE_BUCKETS,
    "embedding_batch_inputs": BATCH_BUCKETS,
}
SIZES = ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens")


def help_text(name: str) -> str:
    """Return the help text of a series; if the series is unknown, its name in words."""
    known = GAUGE_TEXTS.get(name) or TOTAL_TEXTS.get(name) or HISTOGRAM_TEXTS.get(name)
    return known or f"{name.replace('_', ' ').capitalize()}."


def bucket_bounds(name: str, context_length: int) -> tuple[float, ...]:
    """Return the upper bounds of a histogram's buckets, excluding infinity."""
    return size_buckets(context_length) if name in SIZES else BUCKETS.get(name, LATENCY_BUCKETS)


def size_buckets(context_length: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, … up to the context length."""
    steps = (digit * 10.0**power for power in range(9) for digit in (1, 2, 5))
    return tuple(takewhile(lambda bound: bound <= context_length, steps))
