"""Steps with several tokens per item: the same text as with one, and nothing after the token that ends a request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebbtide.messages import FinishReq
from ebbtide.plan import StepResult

from .loads import ample, assert_same, play, random_load, scored
from .multi_token_runner import MultiTokenRunner
from .test_equality import random_shape
from .world import Shape, World, grammar, greedy, text


def num_extra(world: World) -> int:
    """Tokens of the run beyond one per item."""
    assert isinstance(world.runner, MultiTokenRunner)
    return world.runner.num_extra


def retractions(world: World) -> int:
    return world.scheduler.state.metrics.totals["num_retracted_requests_total"]


@pytest.mark.slow
@pytest.mark.parametrize("max_samples", [1, 2, 3])
def test_a_small_pool_and_several_tokens_a_step_give_the_tokens_of_an_ample_pool_and_one(max_samples: int) -> None:
    retracted = 0
    for seed in range(10):
        load = scored(random_load(seed, aborts=seed % 4 == 0), seed)
        expected = play(load, ample((1, 4, 16)[seed % 3]))
        shape = replace(random_shape(seed, expected), max_samples=max_samples)
        seen = play(load, shape)
        assert_same(load, expected, seen)
        assert max_samples == 1 or num_extra(seen) > 100
        retracted += retractions(seen)
    assert retracted > 5


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_stop_token_inside_a_list_drops_the_rest(cut: int) -> None:
    world = World()
    world.generate("a", text("count"), greedy(40, ignore_eos=True))
    tokens = world.run()["a"].tokens
    stop = tokens[cut]
    several = World(Shape(max_samples=4))
    several.generate("a", text("count"), greedy(40, ignore_eos=True, stop_token_ids=(stop,)))
    outcome = several.run()["a"]
    assert (outcome.tokens, outcome.finish) == (tokens[: tokens.index(stop) + 1], "stop")
    assert several.items[-1].stop_token == stop


@pytest.mark.parametrize("max_tokens", range(1, 13))
def test_max_tokens_bounds_a_list(max_tokens: int) -> None:
    world = World(Shape(max_samples=4))
    world.generate("a", text("count"), greedy(max_tokens, ignore_eos=True, logprobs=1))
    outcome = world.run()["a"]
    assert (len(outcome.tokens), len(outcome.logprobs), outcome.finish) == (max_tokens, max_tokens, "length")


@pytest.mark.parametrize("count", range(1, 10))
def test_a_stop_string_inside_a_list_drops_the_rest_and_the_cache_has_only_what_is_left(count: int) -> None:
    plain, several = World(), World(Shape(max_samples=4))
    for world in (plain, several):
        world.generate("a", text("hello"), greedy(40, ignore_eos=True))
        while len(world.outcomes["a"].tokens if "a" in world.outcomes else ()) < 10:
            world.step()
        world.send(FinishReq("a", count))
        tokens = world.run()["a"].tokens[:count]
        world.generate("b", text("hello") + tokens + text(" and on, and on"), greedy(6))
    assert plain.run()["b"].tokens == several.run()["b"].tokens
    assert several.outcomes["a"].finish == "stop"


@pytest.mark.parametrize(("before", "extra", "kept", "finish"), [("b", "xy", "ab", "stop"), ("a", "?", "a", "abort")])
def test_tokens_after_the_end_of_a_grammar_or_forbidden_by_it_are_dropped(
    before: str, extra: str, kept: str, finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    collect = world.runner.collect

    def several() -> StepResult:
        result = collect()
        for tokens in result.tokens:
            tokens += text(extra) if tokens == text(before) else []
        return result

    monkeypatch.setattr(world.runner, "collect", several)
    world.generate("a", text("hello"), greedy(9), grammar=grammar('start: "ab"'))
    outcome = world.run()["a"]
    assert (outcome.tokens, outcome.finish) == (text(kept), finish)


def test_the_last_request_takes_fewer_tokens_than_it_may_before_it_is_aborted() -> None:
    outcomes = []
    for max_samples in (1, 3):
        world = World(Shape(num_pages=6, max_samples=max_samples, num_rows=2))
        world.generate("a", text("hello there"), greedy(30, ignore_eos=True))
        outcome = world.run()["a"]
        outcomes.append((outcome.tokens, outcome.aborts))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 24 - 11 + 1


def test_rows_are_retracted_between_lists_and_resume_with_the_same_text() -> None:
    plain = World(Shape(num_pages=24, num_rows=3, conservativeness=0.02))
    several = World(Shape(num_pages=24, num_rows=3, conservativeness=0.02, max_samples=3, overlap=2))
    for world in (plain, several):
        for rid in "abc":
            world.generate(rid, text(f"the prompt {rid}"), greedy(30, ignore_eos=True))
        world.run()
    assert retractions(several) > 0
    assert {rid: plain.outcomes[rid].tokens for rid in "abc"} == {rid: several.outcomes[rid].tokens for rid in "abc"}
