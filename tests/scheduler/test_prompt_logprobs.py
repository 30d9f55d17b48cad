"""Log-probabilities of prompts: one per token, which does not depend on chunks, cache hits and retractions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ebbtide.errors import PlanError
from ebbtide.messages import AbortReq, GenerateReq, PromptLogprobs, SamplingParams
from ebbtide.plan import PromptLogprobSpec
from ebbtide.scheduler.batching import plan_items
from ebbtide.scheduler.outbox import Outbox
from ebbtide.scheduler.request import Request

from .loads import random_load, scored
from .make import request
from .session_world import SessionWorld, alone
from .test_equality import compare
from .world import Outcome, Shape, World, greedy, text

PROMPT = text("the harbour lies quiet while the tide goes out, and later it comes back in")


def score(shape: Shape, sampling: SamplingParams, prompt: list[int] = PROMPT) -> Outcome:
    """The scores of one prompt, computed alone."""
    world = World(shape)
    world.generate("a", prompt, sampling)
    return world.run()["a"]


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("chunk", [1, 5, 16, 64, 500])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_every_prompt_token_but_the_first_is_scored_once(chunk: int, overlap: int, max_tokens: int) -> None:
    sampling = greedy(max_tokens, prompt_logprobs=3, ignore_eos=True)
    outcome = score(Shape(chunk=chunk, overlap=overlap), sampling)
    assert [token for token, _ in outcome.prompt_logprobs] == PROMPT[1:]
    assert outcome.prompt_logprobs == score(Shape(chunk=1000, page_size=16), sampling).prompt_logprobs
    assert (outcome.finish, len(outcome.tokens)) == ("length", max_tokens)
    assert all(len(entry.top_ids) == 3 and entry.rank for _, entry in outcome.prompt_logprobs)


def test_the_score_of_a_token_is_the_one_it_has_when_it_is_drawn() -> None:
    drawn = score(Shape(), greedy(20, logprobs=2, ignore_eos=True))
    scores = score(Shape(), greedy(0, prompt_logprobs=2), PROMPT + drawn.tokens).prompt_logprobs[-20:]
    assert [(token, e.logprob, e.top_ids) for token, e in scores] == [
        (token, e.logprob, e.top_ids) for token, e in zip(drawn.tokens, drawn.logprobs, strict=True)
    ]
    assert {entry.rank for _, entry in scores} == {1}


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_prompt_of_one_token_has_nothing_to_score_and_ends(max_tokens: int) -> None:
    outcome = score(Shape(overlap=2), greedy(max_tokens, prompt_logprobs=1), text("x"))
    assert (outcome.prompt_logprobs, len(outcome.tokens), outcome.ends) == ([], max_tokens, 1)


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"prompt_logprobs": 0}])
def test_no_token_is_sampled_if_max_tokens_is_0(overlap: int, fields: dict[str, int]) -> None:
    world = World(Shape(chunk=7, overlap=overlap))
    for size in range(1, 30):
        world.generate(f"r{size}", PROMPT[:size], greedy(0, **fields))
    outcomes = world.run()
    assert all((outcome.tokens, outcome.finish, outcome.ends) == ([], "length", 1) for outcome in outcomes.values())
    assert world.scheduler.state.metrics.totals["generation_tokens_total"] == 0


def test_a_scored_prompt_is_not_taken_from_the_cache_but_goes_into_it() -> None:
    world = World()
    world.generate("plain", PROMPT, greedy(1))
    world.run()
    world.generate("scored", PROMPT, greedy(1, prompt_logprobs=0))
    world.run()
    assert world.outcomes["scored"].cached_tokens == 0
    assert len(world.outcomes["scored"].prompt_logprobs) == len(PROMPT) - 1
    world.generate("salted", PROMPT, greedy(1, prompt_logprobs=0), namespace="salt:x")
    world.run()
    world.generate("after", PROMPT, greedy(1), namespace="salt:x")
    assert world.run()["after"].cached_tokens == (len(PROMPT) - 1) // 4 * 4


def test_only_the_first_choice_is_scored_and_the_others_use_its_pages() -> None:
    world = World()
    world.send(GenerateReq(rids=("a", "b", "c"), prompt=PROMPT, sampling=greedy(2, prompt_logprobs=1)))
    outcomes = world.run()
    assert [len(outcomes[rid].prompt_logprobs) for rid in "abc"] == [len(PROMPT) - 1, 0, 0]
    assert [outcomes[rid].cached_tokens for rid in "abc"] == [0, 72, 72]
    scored_items = [index for index, item in enumerate(world.items) if item.prompt is not None]
    assert max(scored_items) < min(index for index, item in enumerate(world.items) if item.rid == "b")


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("host_pages", [0, 64])
def test_a_retraction_in_mid_prefill_neither_repeats_nor_loses_a_score(overlap: int, host_pages: int) -> None:
    shape = Shape(chunk=4, overlap=overlap, retract_interval=3, max_retractions=8, host_pages=host_pages)
    world = World(shape)
    world.generate("a", PROMPT, greedy(4, prompt_logprobs=2, ignore_eos=True))
    outcome = world.run()["a"]
    expected = score(Shape(chunk=1000), greedy(4, prompt_logprobs=2, ignore_eos=True))
    assert outcome.pressure is not None
    assert outcome.pressure.num_retractions > 3
    assert (outcome.prompt_logprobs, outcome.tokens) == (expected.prompt_logprobs, expected.tokens)
    assert outcome.cached_tokens == 0
    # Its own pages were in the tree when it came back, up to what had been scored.
    assert outcome.pressure.recomputed_tokens < len(PROMPT)


def test_pages_of_others_do_not_hide_what_is_not_yet_scored() -> None:
    """The request is retracted after its first chunk, and another request has published the whole prompt."""
    world = World(Shape(chunk=8, retract_interval=1, max_retractions=1))
    world.generate("other", PROMPT, greedy(1))
    world.run()
    world.generate("a", PROMPT, greedy(1, prompt_logprobs=0))
    outcome = world.run()["a"]
    assert outcome.pressure is not None
    assert [token for token, _ in outcome.prompt_logprobs] == PROMPT[1:]


@pytest.mark.parametrize("after", range(1, 12))
def test_an_abort_in_mid_prefill_leaves_the_accounting_balanced(after: int) -> None:
    world = World(Shape(chunk=8, overlap=2))
    world.generate("a", PROMPT, greedy(0, prompt_logprobs=5))
    for _ in range(after):
        world.step()
    world.send(AbortReq("a", "client"))
    outcome = world.run().get("a")
    assert outcome is None or outcome.ends == 1
    assert world.pool.uncached == 0


@pytest.mark.parametrize("num_pages", [8, 16])
def test_a_prompt_as_large_as_the_pool_can_be_scored(num_pages: int) -> None:
    fits = score(Shape(num_pages=num_pages), greedy(0, prompt_logprobs=0), PROMPT[:1] * num_pages * 4)
    assert (fits.finish, len(fits.prompt_logprobs)) == ("length", num_pages * 4 - 1)
    too_long = score(Shape(num_pages=num_pages), greedy(0, prompt_logprobs=0), PROMPT[:1] * (num_pages * 4 + 1))
    assert [abort.status for abort in too_long.aborts] == [400]


def test_the_last_token_of_a_prompt_is_written_also_when_none_follows() -> None:
    assert [request(prompt=8, max_tokens=count).max_kv_tokens for count in range(4)] == [8, 8, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.soak) for first in (20, 40))])
def test_a_small_pool_gives_the_scores_of_an_ample_one(first: int) -> None:
    retractions = sum(
        compare(scored(random_load(seed, aborts=seed % 4 == 0), seed), seed) for seed in range(first, first + 20)
    )
    assert retractions > 10


def test_a_scored_turn_is_computed_in_full_and_the_session_continues() -> None:
    world = SessionWorld(Shape(sessions=True, chunk=8))
    world.open("s")
    first = world.say("s", "a", "a conversation that begins here")
    context = text("a conversation that begins here") + first.tokens + text(" and goes on")
    world.turn("s", "b", " and goes on", greedy(4, prompt_logprobs=0, ignore_eos=True))
    second = world.run()["b"]
    assert [token for token, _ in second.prompt_logprobs] == context[1:]
    assert second.cached_tokens == 0
    third = world.say("s", "c", " to its end")
    assert third.tokens == alone(context + second.tokens + text(" to its end"), greedy(8, ignore_eos=True))
    assert third.cached_tokens > len(context) - world.shape.page_size


def test_a_prompt_without_output_goes_into_the_cache_and_is_found_there() -> None:
    world = World()
    for rid, max_tokens in (("warm", 0), ("again", 0), ("after", 2)):
        world.generate(rid, PROMPT, greedy(max_tokens, ignore_eos=True))
        world.run()
    cached = (len(PROMPT) - 1) // 4 * 4
    assert [world.outcomes[rid].cached_tokens for rid in ("warm", "again", "after")] == [0, cached, cached]
    assert [len(world.outcomes[rid].tokens) for rid in ("warm", "again", "after")] == [0, 0, 2]


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_prompt_without_output_is_retracted_and_ends(overlap: int) -> None:
    shape = Shape(chunk=4, overlap=overlap, retract_interval=3, max_retractions=8)
    world = World(shape)
    world.generate("a", PROMPT, greedy(0))
    outcome = world.run()["a"]
    assert outcome.pressure is not None
    assert outcome.pressure.num_retractions > 3
    assert (outcome.tokens, outcome.finish, outcome.ends) == ([], "length", 1)


def test_a_session_continues_after_a_turn_without_output() -> None:
    world = SessionWorld(Shape(sessions=True, chunk=8))
    world.open("s")
    first = world.say("s", "a", "a conversation that begins here", greedy(0))
    assert (first.tokens, first.finish) == ([], "length")
    second = world.say("s", "b", " and goes on")
    assert second.tokens == alone(text("a conversation that begins here and goes on"), greedy(8, ignore_eos=True))
    assert second.cached_tokens > 0


def uncapped_hits(patch: pytest.MonkeyPatch) -> None:
    """A scored prompt takes pages from the cache like any other."""
    patch.setattr(Request, "num_reusable", property(lambda req: len(req.known) - 1))


def forgotten_prompt_logprobs(patch: pytest.MonkeyPatch) -> None:
    """After a retraction, scores that have been sent are requested again."""
    emit = Outbox.emit_prompt_logprobs

    def forgetful(self: Outbox, req: Request, logprobs: PromptLogprobs) -> None:
        before = req.num_prompt_logprobs_sent
        emit(self, req, logprobs)
        req.num_prompt_logprobs_sent = before

    patch.setattr(Outbox, "emit_prompt_logprobs", forgetful)


def chunks_in_flight(patch: pytest.MonkeyPatch) -> None:
    """The next chunk is requested by the number of sent scores, as if no chunk were in flight."""

    def blind(req: Request, count: int) -> PromptLogprobSpec | None:
        if req.sampling.prompt_logprobs is None or req.num_prompt_logprobs_sent >= req.prompt_len:
            return None
        first = min(req.num_prompt_logprobs_sent, req.computed + count)
        last = min(req.computed + count, req.prompt_len - 1)
        return PromptLogprobSpec(
            max(first - 1 - req.computed, 0), req.known[first : last + 1], req.sampling.prompt_logprobs
        )

    patch.setattr(plan_items, "prompt_logprobs_for", blind)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [uncapped_hits, forgotten_prompt_logprobs, chunks_in_flight])
def test_a_seeded_bug_is_noticed(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, PlanError)):
        compare_many()


def compare_many() -> None:
    """Compare ten loads with scored prompts."""
    for seed in range(10):
        compare(scored(random_load(seed), seed), seed)
