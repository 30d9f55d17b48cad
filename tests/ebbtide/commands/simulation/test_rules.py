"""Each rule on loads that are small enough to compute the expected result by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ebbtide.commands.simulation.measure import Case, Outcome, pareto_front, simulate
from ebbtide.commands.simulation.mixes import MIXES, build
from ebbtide.commands.simulation.rules import POLICIES, ReplacedRatio
from ebbtide.commands.simulation.trace import TraceRequest
from ebbtide.commands.simulation.virtual import Machine
from ebbtide.messages import SamplingParams, TextParams
from ebbtide.retract_policies import Candidate
from ebbtide.scheduler.batching.new_token_ratio import NewTokenRatio
from ebbtide.scheduler.request import Request

PAGE = 16


def outcome(policy: str, requests: list[TraceRequest], pages: int, parameter: float | None = None) -> Outcome:
    value = POLICIES[policy].default if parameter is None else parameter
    machine = Machine(max_retractions=-1)
    return simulate(requests, machine, Case(policy, value, pages * PAGE, 0.0))


def retracted(policy: str, requests: list[TraceRequest], pages: int) -> list[int]:
    """Indices of the requests that were retracted."""
    records = outcome(policy, requests, pages, 0.01 if POLICIES[policy].parameter == "conservativeness" else 0.0)
    return [index for index, record in enumerate(records.run.records) if record.num_retractions]


def request_with(outputs: int, max_tokens: int) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens)
    return Request("r", 0, 4, list(range(4 + outputs)), sampling, TextParams(), PAGE)


def test_vllm_retracts_the_newest_request_and_the_others_retract_the_longest_prompt() -> None:
    """Two requests start together and have outputs of the same length; the first has the longer prompt."""
    pair = [TraceRequest(0.0, 97, 40), TraceRequest(0.0, 64, 40)]
    assert retracted("vllm", pair, 13) == [1]
    assert retracted("length", pair, 13) == [0]


def test_vllm_retracts_by_order_of_admission_and_the_others_by_output() -> None:
    candidates = [Candidate(request_with(outputs, 100), frees=1, cost=1) for outputs in (5, 9, 7)]
    assert POLICIES["vllm"].policies(0.0, []).select_victim(candidates, 1) is candidates[-1]
    assert POLICIES["sglang"].policies(1.0, []).select_victim(candidates, 1) is candidates[0]
    assert POLICIES["length"].policies(1.0, []).select_victim(candidates, 1) is candidates[0]


def test_sglang_requeues_a_retracted_request_behind_newer_requests() -> None:
    """The second request starts later and is the victim; the late ones cannot start before one of the two ends."""
    pair = [TraceRequest(0.0, 97, 60, None, 0, 60), TraceRequest(0.02, 64, 60, None, 0, 60)]
    late = [TraceRequest(0.05, 150, 60, None, 0, 60) for _ in range(2)]
    theirs = outcome("sglang", pair + late, 16, 0.01).run.records
    ours = outcome("vllm", pair + late, 16, 0.0).run.records
    assert theirs[1].num_retractions == ours[1].num_retractions == 1
    assert theirs[1].end_s > max(record.end_s for record in theirs[2:])
    assert ours[1].end_s < min(record.end_s for record in ours[2:])


def test_vllm_reserves_no_output_and_its_watermark_keeps_a_share_free() -> None:
    requests = [TraceRequest(0.0, PAGE * 4, 30, None, 0, 2000) for _ in range(4)]
    eager = outcome("vllm", requests, 16)
    careful = outcome("vllm", requests, 16, 0.3)
    assert eager.run.usage[0][2] == 0  # all four start in the first step
    assert careful.run.usage[0][2] == 2  # ceil(0.3 * 16) pages stay free: room for two
    assert careful.summary.retractions < eager.summary.retractions


def test_sglang_charges_a_candidate_its_whole_remainder_clipped_at_4096() -> None:
    """In a pool of 6,000 tokens, a second request with max_tokens 2,000 can start, and one with 8,000 cannot."""
    pool = 6000 // PAGE
    short = [TraceRequest(0.0, 100, 50, None, 0, 2000) for _ in range(2)]
    loose = [TraceRequest(0.0, 100, 50, None, 0, 8000) for _ in range(2)]
    assert outcome("sglang", short, pool).run.usage[0][2] == 0
    assert outcome("sglang", loose, pool).run.usage[0][2] == 1
    assert outcome("sglang", loose, 9000 // PAGE).run.usage[0][2] == 0  # 2 * (4096 + prompt) fit: clipped


def test_a_retraction_can_lower_sglangs_ratio_and_never_ours() -> None:
    survivors = [request_with(50, 4096) for _ in range(30)]
    ours, theirs = NewTokenRatio(), ReplacedRatio()
    before = ours.value
    ours.raise_after_retract(survivors)
    theirs.raise_after_retract(survivors)
    assert ours.value == before
    assert theirs.value == pytest.approx(30 * 70 / (30 * 4096 + 1))
    assert theirs.value < theirs.minimum


def test_less_headroom_retracts_fewer_requests_at_a_time() -> None:
    requests = [TraceRequest(0.0, 60, 120, None, 0, 120) for _ in range(8)]
    events = {}
    for headroom in (0, 2):
        machine = Machine(max_retractions=-1, headroom=headroom)
        usage = simulate(requests, machine, Case("length", 0.01, 48 * PAGE, 0.0)).run.usage
        events[headroom] = max(after[2] - before[2] for before, after in pairwise(usage))
    assert events == {0: 2, 2: 3}  # all eight rows need a page in the same step, and a victim has six
    assert POLICIES["sglang"].policies(1.0, []).headroom == POLICIES["vllm"].policies(0.0, []).headroom == 0


def test_the_pareto_front_has_the_outcomes_that_no_other_one_dominates() -> None:
    requests = build(MIXES["chat"], 30, 0, 12.0)
    outcomes = [outcome("vllm", requests, 300, value) for value in (0.0, 0.1, 0.5)]
    front = pareto_front(outcomes)
    assert front
    for beaten in (one for one in outcomes if one not in front):
        assert any(
            other.summary.recomputed_share <= beaten.summary.recomputed_share
            and other.summary.latency_p99_s <= beaten.summary.latency_p99_s
            for other in front
        )
    assert min(outcomes, key=lambda one: (one.summary.recomputed_share, one.summary.latency_p99_s)) in front


def test_every_mix_depends_only_on_its_seed_and_has_the_requested_rate() -> None:
    for mix in MIXES.values():
        requests = build(mix, 400, 1, 5.0)
        assert requests == build(mix, 400, 1, 5.0)
        assert requests != build(mix, 400, 2, 5.0)
        assert 400 / requests[-1].arrival_s == pytest.approx(5.0, rel=0.5)
        assert all(request.prefix_len <= request.prompt_len for request in requests)


@pytest.mark.parametrize("policy", ["no-evict", "oracle"])
def test_a_rule_that_never_retracts_admits_fewer_requests_at_first(policy: str) -> None:
    """Each of four requests needs 8 of 16 pages at its full length: both rules admit only two of them."""
    requests = [TraceRequest(0.0, PAGE * 4, 64, None, 0, 64) for _ in range(4)]
    result = outcome(policy, requests, 16)
    assert result.summary.retractions == 0
    assert result.run.usage[0][2] == 2
    assert outcome("vllm", requests, 16).summary.retractions > 0


def test_the_oracle_knows_the_output_and_the_other_rule_only_max_tokens() -> None:
    requests = [TraceRequest(0.0, PAGE * 4, 10, None, 0, 64) for _ in range(3)]
    assert outcome("no-evict", requests, 16).run.usage[0][2] == 1
    assert outcome("oracle", requests, 16).run.usage[0][2] == 0


def test_quantiles_of_generated_lengths_are_the_published_ones() -> None:
    requests = build(MIXES["burstgpt"], 4000, 0, 5.0)
    for lengths, half, tail in (
        (sorted(request.prompt_len for request in requests), 582, 2345),
        (sorted(request.output_len for request in requests), 243, 669),
    ):
        assert lengths[2000] == pytest.approx(half, rel=0.06)
        assert lengths[3800] == pytest.approx(tail, rel=0.06)


def test_the_prompt_of_a_turn_begins_with_the_whole_previous_turn() -> None:
    requests = build(MIXES["sessions"], 8 * 24, 0, 5.0)
    for before, after in pairwise(requests[0::24]):
        assert before.prefix_id == after.prefix_id
        assert before.prompt_len + before.output_len < after.prompt_len == after.prefix_len
