"""Computes the statistics of a load from its outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..results import percentile
from .client import Outcome
from .drive import Run

PERCENTILES = (50, 90, 99)


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return the mean and the percentiles of durations, in milliseconds; None if there are no values."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    values = {"mean": sum(ordered) / len(ordered)}
    values |= {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {name: round(value * 1000, 3) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one load. Latencies are in milliseconds and cover successful requests only.

    Attributes:
        ttft_ms: time to first token.
        itl_ms: time between two chunks of an answer.
        tpot_ms: per request, the time from the first to the last chunk divided by the number of tokens after the first.
        e2e_ms: time from the request to the end of its answer.
    """

    totals: dict[str, Any]
    ttft_ms: dict[str, float] | None
    itl_ms: dict[str, float] | None
    tpot_ms: dict[str, float] | None
    e2e_ms: dict[str, float] | None
    errors: list[dict[str, Any]]


def summarize(run: Run) -> Report:
    """Compute the report of a run."""
    good = [outcome for outcome in run.outcomes if not outcome.error]
    timed = [outcome for outcome in good if outcome.token_times]
    return Report(
        totals=_totals(run, good),
        ttft_ms=spread([outcome.token_times[0] - outcome.started for outcome in timed]),
        itl_ms=spread([later - sooner for outcome in timed for sooner, later in pairwise(outcome.token_times)]),
        tpot_ms=spread([_per_token(outcome) for outcome in timed if outcome.num_output_tokens > 1]),
        e2e_ms=spread([outcome.ended - outcome.started for outcome in good]),
        errors=_errors(run.outcomes),
    )


def _per_token(outcome: Outcome) -> float:
    return (outcome.token_times[-1] - outcome.token_times[0]) / (outcome.num_output_tokens - 1)


def _totals(run: Run, good: list[Outcome]) -> dict[str, Any]:
    output_tokens = sum(outcome.num_output_tokens for outcome in good)
    counted = sum(outcome.output_tokens is None for outcome in good)
    return {
        "completed": len(good),
        "failed": len(run.outcomes) - len(good),
        "duration_s": round(run.duration_s, 6),
        "requests_per_s": round(len(good) / run.duration_s, 3),
        "output_tokens_per_s": round(output_tokens / run.duration_s, 2),
        "output_tokens": output_tokens,
        "prompt_tokens": _known_sum([outcome.prompt_tokens for outcome in good]),
        "cached_tokens": _known_sum([outcome.cached_tokens for outcome in good]),
        "counted_by_chunks": counted,
        "finish_reasons": dict(Counter(str(outcome.finish_reason) for outcome in good)),
        "client_cpu_share": round(run.client_cpu_s / run.duration_s, 4),
    }


def _known_sum(values: list[int | None]) -> int | None:
    """Return the sum of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _errors(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Return the kinds of failures with their counts, the most frequent first, each with the first message."""
    failed = [outcome for outcome in outcomes if outcome.error]
    counts = Counter(outcome.error for outcome in failed)
    examples = {outcome.error: outcome.example for outcome in reversed(failed)}
    return [{"kind": kind, "count": count, "example": examples[kind]} for kind, count in counts.most_common()]
