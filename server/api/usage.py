"""Counts the tokens of one HTTP request: each prompt once, and the output of every choice."""

from __future__ import annotations

from typing import Any

from ebbtide.messages import PressureUsage
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.response_stream import Delta

from .generation_request import StreamOptions


class UsageCount:
    """Collects the counts that the deltas of a request contain."""

    def __init__(self, request: PreparedRequest) -> None:
        self._n = request.n
        self._prompt_tokens = {index * request.n: len(prompt) for index, prompt in enumerate(request.prompts)}
        self._output_tokens: dict[int, int] = {}
        self._cached_tokens: dict[int, int] = {}
        self._reasoning_tokens: dict[int, int] = {}
        self._pressure: dict[int, PressureUsage] = {}

    def add(self, delta: Delta, reasoning_tokens: int | None = None) -> None:
        """Record the totals that a delta contains.

        reasoning_tokens: number of reasoning tokens of the choice so far; None if the model does not reason.
        """
        if reasoning_tokens is not None:
            self._reasoning_tokens[delta.index] = reasoning_tokens
        self._output_tokens[delta.index] = delta.num_output_tokens
        # Count cached tokens only for the first choice of a prompt: the other choices find the prefix that the first
        # choice has just computed.
        if delta.cached_tokens is not None and delta.index % self._n == 0:
            self._cached_tokens[delta.index] = delta.cached_tokens
        if delta.prompt_tokens and delta.index % self._n == 0:
            self._prompt_tokens[delta.index] = delta.prompt_tokens  # in a session, this includes the earlier turns
        if delta.pressure is not None:
            self._pressure[delta.index] = delta.pressure

    def report(self) -> dict[str, Any]:
        """Return OpenAI's usage object. It contains the field ``ebbtide`` if the request was retracted."""
        output_tokens = sum(self._output_tokens.values())
        prompt_tokens = sum(self._prompt_tokens.values())
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }
        if self._reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": sum(self._reasoning_tokens.values())}
        if self._pressure:
            costs = self._pressure.values()
            usage["ebbtide"] = {
                "num_retractions": sum(cost.num_retractions for cost in costs),
                "recomputed_tokens": sum(cost.recomputed_tokens for cost in costs),
                "queue_ms": max(cost.queue_ms for cost in costs),  # the maximum, because choices wait in parallel
            }
        return usage


class StreamedUsage:
    """Adds token counts to a stream: never, in the last chunk only, or in every chunk."""

    def __init__(self, count: UsageCount, options: StreamOptions | None) -> None:
        self._count = count
        self._is_wanted = bool(options and options.include_usage)
        self._is_continuous = self._is_wanted and bool(options and options.continuous_usage_stats)

    def in_chunk(self) -> dict[str, Any]:
        """Return the usage fields of a chunk other than the last."""
        return {"usage": self._count.report()} if self._is_continuous else {}

    def last_chunk(self, head: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the last chunk, which contains only the usage, if it was requested; else no chunk."""
        return [{**head, "choices": [], "usage": self._count.report()}] if self._is_wanted else []
