"""The statistics of simulated loads, and the comparison of policies and pool sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import StartupError
from ..results import percentile
from .rules import POLICIES
from .trace import TraceRequest
from .virtual import Machine, Record, Run, Simulation, ample_pages


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of one run. Times are in seconds.

    Attributes:
        goodput: output tokens of completed requests per second, from the first arrival to the end of the last request.
        recomputed_share: recomputed tokens divided by computed tokens.
        fairness: Jain's index of the slowdown (latency divided by the latency of the request alone); 1 if all requests
            are slowed down equally.
    """

    goodput: float
    recomputed_share: float
    ttft_p50_s: float
    ttft_p99_s: float
    latency_p50_s: float
    latency_p99_s: float
    fairness: float
    retractions: int
    max_retractions: int
    recomputed_tokens: int
    computed_tokens: int
    completed: int
    aborted: int
    steps: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """A pool size, and a policy with its admission parameter.

    Attributes:
        pool_fraction: pool size as a fraction of the demand.
    """

    policy: str
    parameter: float
    pool_tokens: int
    pool_fraction: float

    @property
    def label(self) -> str:
        """The policy's name, followed by its admission parameter if that is not the default."""
        policy = POLICIES[self.policy]
        if self.parameter == policy.default:
            return self.policy
        return f"{self.policy}, {policy.parameter} {self.parameter:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and its result."""

    case: Case
    summary: Summary
    run: Run


def summarise(run: Run, machine: Machine) -> Summary:
    """Return the statistics of one run."""
    done = [record for record in run.records if record.finish not in ("abort", "left")]
    latencies = sorted(record.end_s - record.request.arrival_s for record in done)
    ttfts = sorted(r.first_token_s - r.request.arrival_s for r in done if r.first_token_s is not None)
    duration_s = max(record.end_s for record in run.records) - run.records[0].request.arrival_s
    return Summary(
        goodput=sum(record.num_outputs for record in done) / duration_s if duration_s else 0.0,
        recomputed_share=run.recomputed_tokens / run.computed_tokens if run.computed_tokens else 0.0,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p99_s=percentile(ttfts, 99),
        latency_p50_s=percentile(latencies, 50),
        latency_p99_s=percentile(latencies, 99),
        fairness=_jain([_slowdown(record, machine) for record in done]),
        retractions=run.num_retractions,
        max_retractions=max(record.num_retractions for record in run.records),
        recomputed_tokens=run.recomputed_tokens,
        computed_tokens=run.computed_tokens,
        completed=len(done),
        aborted=sum(record.finish == "abort" for record in run.records),
        steps=run.num_steps,
        duration_s=duration_s,
    )


def demand_tokens(requests: list[TraceRequest], machine: Machine) -> int:
    """Return the peak KV use of the load in an unlimited pool, in tokens."""
    simulation = Simulation(requests, machine, ample_pages(requests, machine), POLICIES["length"], 1.0)
    return simulation.run().peak_tokens


def simulate(requests: list[TraceRequest], machine: Machine, case: Case) -> Outcome:
    """Run one case. Raises StartupError if the pool is smaller than a page."""
    num_pages = case.pool_tokens // machine.page_size
    if num_pages < 1:
        raise StartupError(f"A pool of {case.pool_tokens} tokens is smaller than a page of {machine.page_size} tokens.")
    run = Simulation(requests, machine, num_pages, POLICIES[case.policy], case.parameter).run()
    return Outcome(case, summarise(run, machine), run)


def pareto_front(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes on the Pareto front of recomputed share and p99 latency.

    For such an outcome, no other outcome is better in one of the two values without being worse in the other.
    """
    points = [(outcome.summary.recomputed_share, outcome.summary.latency_p99_s) for outcome in outcomes]
    return [
        outcome
        for outcome, (share, latency) in zip(outcomes, points, strict=True)
        if not any(s <= share and p <= latency and (s, p) != (share, latency) for s, p in points)
    ]


def parameters(policy: str, conservativeness: Sequence[float], watermark: Sequence[float]) -> Iterator[float]:
    """Yield the requested values of the policy's admission parameter; its default if none are requested."""
    rule = POLICIES[policy]
    yield from (conservativeness if rule.parameter == "conservativeness" else watermark) or [rule.default]


def _slowdown(record: Record, machine: Machine) -> float:
    alone_s = _alone_s(record.request, machine)
    return (record.end_s - record.request.arrival_s) / alone_s if alone_s > 0 else 1.0


def _alone_s(request: TraceRequest, machine: Machine) -> float:
    """Return the duration in seconds of a request that runs alone with an empty prefix cache."""
    cost, prompt, outputs = machine.cost, request.prompt_len, request.num_outputs
    chunks = -(-prompt // machine.chunk)
    prefill = chunks * cost.base_s + prompt * cost.prefill_token_s
    prefill += (chunks + 1) * prompt / 2 * cost.context_token_s
    return prefill + (outputs - 1) * cost.seconds(1, 0, prompt + outputs / 2)


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
