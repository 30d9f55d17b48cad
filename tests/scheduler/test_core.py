"""The scheduler's interface with the simulated runner, one behavior per test."""

from __future__ import annotations

import pytest

from ebbtide.messages import AbortReq, FinishReq, GenerateReq, SamplingParams
from ebbtide.plan import StepResult
from ebbtide.rng import choice_seed
from ebbtide.scheduler.memory.prefix_cache import MatchResult
from ebbtide.scheduler.request import Request
from ebbtide.tokenization.vocabulary import SIM_EOS

from .world import Outcome, Shape, World, greedy, text

OVERLAP = pytest.mark.parametrize("overlap", [1, 2])


def alone(prompt: list[int], sampling: SamplingParams) -> Outcome:
    """The output of a request that runs alone."""
    world = World(Shape(num_pages=2000, chunk=4096, num_rows=1, cache=False))
    world.generate("alone", prompt, sampling)
    return world.run()["alone"]


@OVERLAP
def test_a_request_ends_by_length_after_exactly_max_tokens(overlap: int) -> None:
    for max_tokens in (1, 2, 3, 17):
        world = World(Shape(overlap=overlap))
        world.generate("a", text("hello"), greedy(max_tokens, ignore_eos=True))
        outcome = world.run()["a"]
        assert (len(outcome.tokens), outcome.finish) == (max_tokens, "length")


@OVERLAP
def test_a_request_ends_by_its_end_token_which_is_its_last(overlap: int) -> None:
    ended = 0
    for index in range(8):
        world = World(Shape(overlap=overlap, num_pages=2000))
        world.generate("a", text(f"prompt {index}"), greedy(400))
        outcome = world.run()["a"]
        if outcome.finish == "stop":
            ended += 1
            assert outcome.tokens[-1] == SIM_EOS
            assert SIM_EOS not in outcome.tokens[:-1]
    assert ended > 4


def test_a_stop_token_ends_a_request_but_not_before_min_tokens() -> None:
    base = alone(text("count"), greedy(40, ignore_eos=True)).tokens
    world = World()
    world.generate("a", text("count"), greedy(40, ignore_eos=True, stop_token_ids=(base[4],)))
    outcome = world.run()["a"]
    assert (outcome.tokens, outcome.finish) == (base[: base.index(base[4]) + 1], "stop")
    held = World()
    held.generate("a", text("count"), greedy(40, ignore_eos=True, stop_token_ids=(base[4],), min_tokens=30))
    assert len(held.run()["a"].tokens) >= 30


def test_the_context_length_ends_a_request() -> None:
    world = World(Shape(context_length=12))
    world.generate("a", text("hello wo"), greedy(100, ignore_eos=True))
    outcome = world.run()["a"]
    assert (len(outcome.tokens), outcome.finish) == (4, "length")


def test_a_prompt_is_computed_in_chunks_of_the_budget_while_others_decode() -> None:
    world = World(Shape(chunk=8))
    world.generate("short", text("hi"), greedy(30, ignore_eos=True))
    world.step()
    world.generate("long", text("x" * 40), greedy(2, ignore_eos=True))
    before = len(world.outcomes["short"].tokens)
    while "long" not in world.outcomes:
        world.step()
    assert len(world.outcomes["short"].tokens) - before >= 5  # one token for each chunk of 8 of the 40 tokens


def test_a_second_request_of_the_same_prompt_finds_it_cached() -> None:
    world = World()
    world.generate("a", text("x" * 41), greedy(2))
    world.run()
    world.generate("b", text("x" * 41), greedy(2))
    assert world.run()["b"].cached_tokens == 40
    assert world.outcomes["a"].cached_tokens == 0
    assert world.outcomes["a"].tokens == world.outcomes["b"].tokens
    totals = world.scheduler.state.metrics.totals
    assert (totals["prompt_tokens_total"], totals["cached_tokens_total"]) == (82, 40)


def test_without_the_radix_cache_nothing_is_reused() -> None:
    world = World(Shape(cache=False))
    for rid in "ab":
        world.generate(rid, text("x" * 41), greedy(2))
        assert world.run()[rid].cached_tokens == 0


def test_choices_wait_for_the_first_ones_prompt_and_reuse_it() -> None:
    world = World(Shape(chunk=8))
    sampling = SamplingParams(max_tokens=8, temperature=1.0, seed=5, ignore_eos=True)
    world.send(GenerateReq(rids=("a", "b", "c"), prompt=text("x" * 33), sampling=sampling))
    outcomes = world.run()
    assert [outcomes[rid].cached_tokens for rid in "abc"] == [0, 32, 32]
    assert len({tuple(outcomes[rid].tokens) for rid in "abc"}) == 3
    assert outcomes["a"].tokens == alone(text("x" * 33), sampling).tokens


def test_greedy_choices_are_copies() -> None:
    world = World()
    world.send(GenerateReq(rids=("a", "b"), prompt=text("hello"), sampling=greedy(6)))
    outcomes = world.run()
    assert outcomes["a"].tokens == outcomes["b"].tokens


def test_choices_continue_if_the_first_one_is_aborted_in_its_prefill() -> None:
    world = World(Shape(chunk=8))
    world.send(GenerateReq(rids=("a", "b"), prompt=text("x" * 33), sampling=greedy(4)))
    world.step()
    world.send(AbortReq("a", "client"))
    outcomes = world.run()
    assert (outcomes["a"].finish, outcomes["b"].finish) == ("abort", "length")


def test_a_choice_that_still_waits_for_the_first_can_be_aborted() -> None:
    world = World(Shape(chunk=8))
    world.send(GenerateReq(rids=("a", "b"), prompt=text("x" * 33), sampling=greedy(4)))
    world.step()
    world.send(AbortReq("b", "client"))
    outcomes = world.run()
    assert (outcomes["a"].finish, outcomes["b"].finish) == ("length", "abort")
    assert outcomes["b"].tokens == []


@OVERLAP
@pytest.mark.parametrize("after", range(14))
def test_an_abort_at_any_step_frees_all_pages(after: int, overlap: int) -> None:
    """Queued, in each chunk, in flight, decoding or ended: one outcome, all pages freed, other requests unchanged."""
    world = World(Shape(chunk=8, overlap=overlap))
    neighbour = alone(text("neighbour"), greedy(30))
    world.generate("n", text("neighbour"), greedy(30))
    world.step()
    world.generate("a", text("y" * 50), greedy(4, ignore_eos=True))
    for _ in range(after):
        world.step()
    world.send(AbortReq("a", "client"), AbortReq("a", "client"), AbortReq("never seen", "client"))
    outcomes = world.run()
    assert outcomes["a"].ends == 1
    assert outcomes["a"].aborts == []
    assert outcomes["n"].tokens == neighbour.tokens


@OVERLAP
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_stop_string_cuts_the_outputs_and_ends_it_normally(count: int, overlap: int) -> None:
    world = World(Shape(overlap=overlap))
    world.generate("a", text("hello"), greedy(60, ignore_eos=True))
    while len(world.outcomes.get("a", Outcome()).tokens) < 5:
        world.step()
    world.send(FinishReq("a", count))
    outcome = world.run()["a"]
    assert (outcome.finish, outcome.ends) == ("stop", 1)
    totals = world.scheduler.state.metrics.totals
    assert totals["num_requests_total{finish_reason=stop}"] == 1
    prompt = text("hello") + outcome.tokens[:count] + text("more words to fill a page")
    world.generate("b", prompt, greedy(6))
    assert world.run()["b"].tokens == alone(prompt, greedy(6)).tokens
    assert world.outcomes["b"].cached_tokens <= 5 + count


def test_a_late_finish_of_an_ended_request_is_ignored() -> None:
    world = World()
    world.generate("a", text("hello"), greedy(3))
    world.run()
    world.send(FinishReq("a", 1), AbortReq("a", "client"))
    world.run()
    assert world.outcomes["a"].ends == 1


def test_a_request_larger_than_the_pool_is_refused_and_delays_no_other() -> None:
    world = World(Shape(num_pages=8))
    world.generate("big", text("x" * 32), greedy(2))
    world.generate("fits", text("y" * 32), greedy(1))
    outcomes = world.run()
    (abort,) = outcomes["big"].aborts
    assert (abort.status, abort.code) == (400, "context_length_exceeded")
    assert "32 tokens" in abort.message
    assert outcomes["fits"].finish == "length"


def test_an_empty_prompt_is_refused_and_delays_no_other_request() -> None:
    world = World()
    world.generate("empty", [], greedy(2))
    world.generate("fits", text("y"), greedy(1))
    outcomes = world.run()
    assert (outcomes["empty"].aborts[0].status, outcomes["fits"].finish) == (400, "length")


@OVERLAP
def test_a_request_that_outgrows_the_pool_gets_500_after_every_token_that_fits(overlap: int) -> None:
    world = World(Shape(num_pages=8, overlap=overlap))
    world.generate("big", text("x" * 20), greedy(500, ignore_eos=True))
    world.generate("small", text("y" * 5), greedy(3, ignore_eos=True))
    outcomes = world.run()
    (abort,) = outcomes["big"].aborts
    assert (abort.status, abort.code, abort.reason) == (500, "kv_cache_exhausted", "kv_cache_exhausted")
    assert abort.num_output_tokens == len(outcomes["big"].tokens) == 32 - 20 + 1
    assert "--max-total-tokens" in abort.message
    assert outcomes["small"].finish == "length"


def test_a_retracted_request_that_no_longer_fits_is_aborted_at_the_head_of_the_queue() -> None:
    world = World(Shape(num_pages=8, conservativeness=0.02))
    world.generate("a", text("x" * 4), greedy(500, ignore_eos=True))
    world.generate("b", text("y" * 4), greedy(500, ignore_eos=True))
    outcomes = world.run()
    assert [outcomes[rid].aborts[0].code for rid in "ab"] == ["kv_cache_exhausted"] * 2
    assert [len(outcomes[rid].tokens) for rid in "ab"] == [29, 29]


def test_retracted_requests_conserve_counters_and_report_their_cost() -> None:
    world = World(Shape(num_pages=12, conservativeness=0.02))
    for rid in "abc":
        world.generate(rid, text(f"{rid} prompt"), greedy(30, ignore_eos=True))
    outcomes = world.run()
    totals = world.scheduler.state.metrics.totals
    assert totals["num_retracted_requests_total"] == totals["num_resumed_requests_total"] > 0
    assert totals["num_recomputed_tokens_total"] > 0
    for rid in "abc":
        assert outcomes[rid].tokens == alone(text(f"{rid} prompt"), greedy(30, ignore_eos=True)).tokens
    spent = [outcome.pressure for outcome in outcomes.values() if outcome.pressure is not None]
    assert sum(entry.num_retractions for entry in spent) == totals["num_retracted_requests_total"]
    assert sum(entry.recomputed_tokens for entry in spent) == totals["num_recomputed_tokens_total"]
    assert totals["cached_tokens_total"] == 0  # its own earlier pages do not count as a cache hit


def test_the_cost_of_a_retraction_is_reported_before_a_stop_string_ends_the_request() -> None:
    world = World(Shape(retract_interval=6, max_retractions=1))
    world.generate("a", text("hello"), greedy(60, ignore_eos=True))
    costs = []
    while len(world.outcomes.get("a", Outcome()).tokens) < 20:
        world.step()
        costs += [item.pressure for item in world.items if item.pressure is not None]
        world.items.clear()
    assert [cost.num_retractions for cost in costs] == [1]
    world.send(FinishReq("a", 15))
    assert world.run()["a"].finish == "stop"


def test_an_abort_while_retracted_is_counted_as_such() -> None:
    world = World(Shape(num_pages=40, conservativeness=0.02))
    for rid in "ab":
        world.generate(rid, text(f"{rid} prompt"), greedy(150, ignore_eos=True))
    while not world.scheduler.state.num_retracted:
        world.step()
    (victim,) = list(world.scheduler.state.waiting)
    world.send(AbortReq(victim.rid, "client"))
    world.run()
    totals = world.scheduler.state.metrics.totals
    assert totals["num_ended_while_retracted_total{reason=client}"] == 1
    assert totals["num_retracted_requests_total"] == totals["num_resumed_requests_total"] + 1
    assert world.scheduler.state.num_retracted == 0


def test_a_cache_that_overstates_its_evictable_pages_only_delays_one_request() -> None:
    """An allocation fails after admission: the request is requeued and served later."""
    world = World(Shape(num_pages=13))
    world.generate("a", text("x" * 51), greedy(2, ignore_eos=True))
    world.step()
    world.step()
    assert world.allocator.available_pages == 0
    cache = world.pool.tree_cache

    class Liar:
        """Delegates all calls, but reports more evictable pages than it can free."""

        def __getattr__(self, name: str) -> object:
            return getattr(cache, name)

        @property
        def evictable_pages(self) -> int:
            return cache.evictable_pages + 100

        def match_prefix(self, req: Request) -> MatchResult:
            return cache.match_prefix(req)

    world.pool.tree_cache = Liar()  # type: ignore[assignment]
    world.generate("b", text("y" * 40), greedy(2, ignore_eos=True))
    world.receive()
    plan = world.scheduler.next_step(1.0)
    assert plan is not None
    world.runner.submit(plan)
    world.scheduler.settle(world.runner.collect())
    assert world.scheduler.state.requests["b"].history.retraction_count == 1
    world.pool.tree_cache = cache
    outcomes = world.run()
    assert outcomes["b"].tokens == alone(text("y" * 40), greedy(2, ignore_eos=True)).tokens


def test_a_prefill_that_finds_no_page_frees_its_pages() -> None:
    world = World(Shape(num_pages=9, chunk=8, conservativeness=0.02, num_rows=4))
    world.generate("a", text("abcd"), greedy(26, ignore_eos=True))
    world.step()
    while len(world.outcomes["a"].tokens) < 8:
        world.step()
    world.generate("b", text("y" * 18), greedy(3, ignore_eos=True))
    outcomes = world.run()
    assert outcomes["a"].finish == outcomes["b"].finish == "length"
    assert outcomes["b"].tokens == alone(text("y" * 18), greedy(3, ignore_eos=True)).tokens


def test_without_steps_in_flight_the_scheduler_is_idle_only_if_no_request_waits() -> None:
    world = World()
    assert world.scheduler.idle
    world.generate("a", text("x"), greedy(1))
    world.receive()
    assert not world.scheduler.idle
    world.run()
    assert world.scheduler.idle


def test_results_must_come_in_the_order_of_their_plans() -> None:
    world = World()
    world.generate("a", text("x"), greedy(1))
    world.receive()
    world.dispatch()
    with pytest.raises(AssertionError, match="received result 7 for plan 0"):
        world.scheduler.settle(StepResult(7, []))


def test_the_snapshot_reads_zero_load_when_idle() -> None:
    world = World()
    world.generate("a", text("x" * 30), greedy(9))
    world.step()
    busy = world.scheduler.snapshot().gauges
    assert (busy["num_running_reqs"], busy["kv_uncached_tokens{pool=full}"] > 0) == (1, True)
    world.run()
    idle = world.scheduler.snapshot()
    load = ["num_running_reqs", "num_queue_reqs", "num_retracted_reqs", "token_usage", "kv_uncached_tokens{pool=full}"]
    assert [idle.gauges[name] for name in load] == [0] * len(load)
    assert idle.observations["retractions_per_request"] == [0]
    assert idle.totals["generation_tokens_total"] == len(world.outcomes["a"].tokens)


def test_the_highest_priority_is_admitted_first() -> None:
    world = World(Shape(num_rows=1, policy="priority"))
    for rid, priority in [("low", -1), ("high", 5), ("mid", 0)]:
        world.generate(rid, text(rid), greedy(2), priority=priority)
    world.run()
    assert list(world.outcomes) == ["high", "mid", "low"]


def test_longest_prefix_match_prefers_a_cached_prompt() -> None:
    world = World(Shape(num_rows=1, policy="lpm"))
    world.generate("first", text("x" * 41), greedy(1))
    world.run()
    world.generate("cold", text("z" * 41), greedy(1))
    world.generate("hot", text("x" * 41), greedy(1))
    world.run()
    assert list(world.outcomes) == ["first", "hot", "cold"]


def test_choices_share_the_tokens_of_their_prompt_until_they_have_outputs() -> None:
    world = World(Shape(num_rows=2))
    prompt = text("a prompt of many choices")
    world.send(GenerateReq(tuple("abcdefgh"), prompt, SamplingParams(max_tokens=3, seed=1, ignore_eos=True)))
    world.receive()
    requests = list(world.scheduler.state.requests.values())
    assert len({id(req.known) for req in requests}) == 1
    while any(req.num_outputs == 0 for req in requests):
        assert all(req.known[: req.prompt_len] == text("a prompt of many choices") for req in requests)
        waiting = [req for req in requests if not req.num_outputs]
        assert len({id(req.known) for req in waiting}) == 1
        world.step()
    for index, (rid, outcome) in enumerate(world.run().items()):
        alone = World()
        seed = choice_seed(1, index)
        alone.generate(rid, text("a prompt of many choices"), SamplingParams(max_tokens=3, seed=seed, ignore_eos=True))
        assert outcome.tokens == alone.run()[rid].tokens
