"""A simulated run: conservation of tokens and requests, and recovery of the throughput after pressure."""

from __future__ import annotations

import pytest

from ebbtide.commands.simulation.measure import Case, Outcome, demand_tokens, simulate
from ebbtide.commands.simulation.mixes import MIXES, build, rate_for
from ebbtide.commands.simulation.rules import POLICIES
from ebbtide.commands.simulation.trace import TraceRequest
from ebbtide.commands.simulation.virtual import Machine, Record
from ebbtide.step_cost import StepCost

MACHINE = Machine(num_rows=16)


def load(mix: str, count: int = 24, seed: int = 0) -> list[TraceRequest]:
    rate = rate_for(MIXES[mix], 0.9, MACHINE.cost, MACHINE.num_rows)
    return build(MIXES[mix], count, seed, rate)


def case(policy: str, pool_tokens: int, machine: Machine = MACHINE) -> Case:
    return Case(policy, POLICIES[policy].default, pool_tokens, 0.0)


def outcome_at_half(mix: str, policy: str) -> Outcome:
    requests = load(mix)
    return simulate(requests, MACHINE, case(policy, demand_tokens(requests, MACHINE) // 2))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mix", ["chat", "agents", "bursty"])
def test_every_request_ends_with_the_tokens_of_its_trace(mix: str, policy: str) -> None:
    outcome = outcome_at_half(mix, policy)
    for record in outcome.run.records:
        assert record.num_outputs == record.request.num_outputs
        assert record.finish == ("stop" if record.request.num_outputs == record.request.output_len else "length")
        assert record.first_token_s is not None
        assert record.request.arrival_s < record.first_token_s <= record.end_s
    assert outcome.summary.completed == len(outcome.run.records)
    outputs = sum(record.request.num_outputs for record in outcome.run.records)
    assert outcome.summary.goodput == pytest.approx(outputs / outcome.summary.duration_s)


@pytest.mark.parametrize("policy", ["length", "vllm"])
def test_computed_tokens_are_the_needed_ones_and_the_recomputed_ones(policy: str) -> None:
    requests = [TraceRequest(0.0, 100 + index, 60) for index in range(12)]
    outcome = simulate(requests, MACHINE, Case(policy, 0.01, 640, 0.0))
    assert outcome.summary.retractions > 0
    needed = sum(request.prompt_len + request.output_len - 1 for request in requests)
    assert outcome.summary.computed_tokens == needed + outcome.summary.recomputed_tokens
    assert outcome.summary.retractions == sum(record.num_retractions for record in outcome.run.records)


def test_the_bound_on_retractions_holds_for_our_rules_and_not_for_vllms() -> None:
    requests = load("long-output", 12)
    machine = Machine(num_rows=16, max_retractions=1)
    pool = demand_tokens(requests, machine) // 3
    ours, theirs = (simulate(requests, machine, Case(policy, 0.01, pool, 0.0)).summary for policy in ("length", "vllm"))
    assert ours.max_retractions == 1
    assert theirs.max_retractions > 1


def test_a_shared_prefix_is_computed_once() -> None:
    requests = [TraceRequest(float(index), 1000, 4, "system", 960) for index in range(5)]
    outcome = simulate(requests, MACHINE, case("length", 8000))
    assert outcome.summary.computed_tokens == 960 + 5 * (40 + 3)


def test_a_request_that_outgrows_the_pool_is_aborted_and_the_others_continue() -> None:
    """Without the client's limit, the pool is the limit, as in the daemon."""
    requests = [
        TraceRequest(0.0, 100, 1000, None, 0, 2000),
        TraceRequest(0.0, 5000, 10),
        TraceRequest(0.1, 100, 20),
        TraceRequest(0.1, 100, 1000),
    ]
    outcome = simulate(requests, MACHINE, case("length", 640))
    assert [record.finish for record in outcome.run.records] == ["abort", "abort", "stop", "length"]
    assert (outcome.summary.aborted, outcome.summary.completed) == (2, 2)
    assert [outcome.run.records[index].num_outputs for index in (0, 3)] == 2 * [640 - 100 + 1]


def test_the_time_equals_that_of_the_cost_model() -> None:
    cost = StepCost(base_s=1.0, decode_row_s=0.1, prefill_token_s=0.01, context_token_s=0.001)
    machine = Machine(cost=cost, chunk=8)
    outcome = simulate([TraceRequest(2.0, 10, 3)], machine, case("length", 640))
    (record,) = outcome.run.records
    first = (1 + 0.08 + 0.008) + (1 + 0.02 + 0.010)
    assert record.first_token_s == pytest.approx(2.0 + first)
    assert record.end_s == pytest.approx(2.0 + first + (1 + 0.1 + 0.011) + (1 + 0.1 + 0.012))
    assert outcome.summary.fairness == pytest.approx(1.0)


def test_demand_is_the_peak_of_what_is_in_use_at_once() -> None:
    together = [TraceRequest(0.0, 160, 1), TraceRequest(0.0, 320, 1)]
    apart = [TraceRequest(0.0, 160, 2), TraceRequest(100.0, 320, 2)]
    assert demand_tokens(together, Machine()) == 480
    assert demand_tokens(apart, Machine()) == 336  # the longer one and the page of its first output token


def phase_rate(records: list[Record]) -> float:
    duration_s = max(record.end_s for record in records) - min(record.request.arrival_s for record in records)
    return sum(record.num_outputs for record in records) / duration_s


@pytest.mark.parametrize("policy", ["length", "cost"])
def test_throughput_is_back_within_5_percent_after_a_burst(policy: str) -> None:
    def four(at: float) -> list[TraceRequest]:
        return [TraceRequest(at, 200, 200) for _ in range(4)]

    burst = [TraceRequest(20.0 + index * 0.01, 100 + 13 * index, 150 + 17 * (index % 7)) for index in range(40)]
    requests = four(0.0) + burst + four(400.0)
    eager = Case(policy, 0.02, 3200, 0.0)  # four requests use half of the pool
    outcome = simulate(requests, MACHINE, eager)
    records = outcome.run.records
    assert outcome.summary.retractions > 0
    assert all(record.end_s < 400 for record in records[:-4])
    assert not any(record.num_retractions for record in records[:4] + records[-4:])
    assert phase_rate(records[-4:]) == pytest.approx(phase_rate(records[:4]), rel=0.05)


def test_a_client_that_leaves_frees_its_memory_and_counts_as_neither_completed_nor_aborted() -> None:
    requests = [TraceRequest(0.0, 64, 4000, None, 0, 4000, leaves_s=0.5), TraceRequest(0.1, 64, 20, None, 0, 20)]
    outcome = simulate(requests, MACHINE, case("length", 16 * 16))
    left, stayed = outcome.run.records
    assert (left.finish, stayed.finish, outcome.summary.completed, outcome.summary.aborted) == ("left", "stop", 1, 0)
    assert 0.5 <= left.end_s < 0.6
    assert left.num_outputs < 4000
