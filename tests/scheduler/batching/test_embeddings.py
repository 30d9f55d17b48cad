"""Embeddings in the scheduler: one vector per prompt, which does not depend on chunks and retractions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ebbtide.messages import AbortReq, GenerateReq
from ebbtide.scheduler.batching.output_lengths import OutputLengths, kind_of

from ..loads import EMBEDDING, ample, assert_same, demand, embedded, play, random_load
from ..make import request
from ..test_equality import random_shape
from ..world import Outcome, Shape, World, greedy, text

PROMPT = text("the harbour lies quiet while the tide goes out, and later it comes back in")


def embed(prompt: list[int], shape: Shape | None = None) -> Outcome:
    """The embedding of one prompt, computed alone."""
    world = World(shape or Shape())
    world.generate("a", prompt, EMBEDDING)
    return world.run()["a"]


def vector(outcome: Outcome) -> Sequence[float]:
    values: list[float] = np.frombuffer(outcome.embedding, "<f4").tolist()
    return values


def balance(world: World) -> None:
    """Check that every received request has ended, and that every retracted one was resumed or has ended."""
    totals = world.scheduler.state.metrics.totals
    ended = sum(totals[key] for key in totals if key.startswith(("num_requests_total", "num_aborted_requests_total")))
    assert totals["num_received_requests_total"] == ended
    gone = sum(totals[key] for key in totals if key.startswith("num_ended_while_retracted_total"))
    assert totals["num_retracted_requests_total"] == totals["num_resumed_requests_total"] + gone


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("chunk", [1, 5, 73, 500])
def test_every_prompt_has_one_vector_of_length_1_and_no_token(chunk: int, overlap: int) -> None:
    outcome = embed(PROMPT, Shape(chunk=chunk, overlap=overlap))
    assert (outcome.tokens, outcome.finish, outcome.ends, outcome.prompt_tokens) == ([], "stop", 1, len(PROMPT))
    assert np.linalg.norm(vector(outcome)) == pytest.approx(1, abs=1e-6)
    assert outcome.embedding == embed(PROMPT, Shape(page_size=16, chunk=1000)).embedding


def test_prompts_that_differ_in_one_token_have_different_vectors() -> None:
    for place in (0, 1, len(PROMPT) - 1):
        changed = [*PROMPT[:place], PROMPT[place] + 1, *PROMPT[place + 1 :]]
        assert abs(float(np.dot(vector(embed(PROMPT)), vector(embed(changed))))) < 0.9


@pytest.mark.parametrize("length", range(1, 14))
def test_a_vector_does_not_depend_on_the_prefix_cache(length: int) -> None:
    world = World()
    world.generate("chat", PROMPT[:8], greedy(1))
    world.run()
    for rid in ("first", "again"):
        world.generate(rid, PROMPT[:length], EMBEDDING)
        world.run()
        cached = (length - 1) // 4 * 4
        assert world.outcomes[rid].cached_tokens == (cached if rid == "again" else min(cached, 8))
        assert world.outcomes[rid].embedding == embed(PROMPT[:length]).embedding
    balance(world)


def test_the_prompt_of_an_embedding_is_cached_for_a_chat() -> None:
    world = World()
    world.generate("embedding", PROMPT, EMBEDDING)
    world.run()
    world.generate("chat", PROMPT, greedy(5, ignore_eos=True))
    assert world.run()["chat"].cached_tokens == (len(PROMPT) - 1) // 4 * 4
    alone = World()
    alone.generate("chat", PROMPT, greedy(5, ignore_eos=True))
    assert alone.run()["chat"].tokens == world.outcomes["chat"].tokens


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("host_pages", [0, 64])
@pytest.mark.parametrize("interval", [1, 2, 3])
def test_a_retraction_in_mid_prefill_gives_the_same_vector(interval: int, host_pages: int, overlap: int) -> None:
    shape = Shape(chunk=4, overlap=overlap, retract_interval=interval, max_retractions=50, host_pages=host_pages)
    world = World(shape)
    world.generate("a", PROMPT, EMBEDDING)
    outcome = world.run()["a"]
    assert outcome.pressure is not None
    assert outcome.pressure.num_retractions > 3
    assert outcome.embedding == embed(PROMPT).embedding
    balance(world)


def test_an_embedding_is_retracted_when_chats_need_its_memory() -> None:
    world = World(Shape(num_pages=26, chunk=4, conservativeness=0.02))
    world.generate("chat", PROMPT[:16], greedy(60, ignore_eos=True))
    world.step()
    world.generate("embedding", PROMPT[1:], EMBEDDING)
    world.run()
    assert any(victim.rid == "embedding" for event in world.events for victim in event.victims)
    assert world.outcomes["embedding"].embedding == embed(PROMPT[1:]).embedding
    assert len(world.outcomes["chat"].tokens) == 60
    balance(world)


def test_an_abort_ends_an_embedding_wherever_it_is() -> None:
    for steps in range(6):
        world = World(Shape(chunk=20, overlap=2))
        world.generate("a", PROMPT, EMBEDDING)
        for _ in range(steps):
            world.step()
        world.send(AbortReq("a", "client"))
        outcome = world.run()["a"]
        assert (outcome.ends, outcome.finish) == (1, "abort" if steps < 4 else "stop")
        balance(world)


def test_a_prompt_that_never_fits_is_refused() -> None:
    world = World(Shape(num_pages=10))
    world.generate("fits", PROMPT[:40], EMBEDDING)
    world.generate("large", PROMPT[:41], EMBEDDING)
    outcomes = world.run()
    assert outcomes["fits"].embedding
    assert [abort.code for abort in outcomes["large"].aborts] == ["context_length_exceeded"]


def test_many_embeddings_share_a_pool_that_holds_two() -> None:
    world = World(Shape(num_pages=40, chunk=8, num_rows=8))
    prompts = {f"r{start}": PROMPT[start:] for start in range(24)}
    for place, (rid, prompt) in enumerate(prompts.items()):
        world.send(GenerateReq((rid,), prompt, EMBEDDING, num_before=place))
    for rid, outcome in world.run().items():
        assert outcome.embedding == embed(prompts[rid]).embedding, rid
    balance(world)


def test_embeddings_do_not_count_as_short_outputs() -> None:
    """Otherwise admission would expect empty outputs and reserve no memory for them."""
    lengths = OutputLengths()
    curve = lengths.curve(kind_of(request(sampling=EMBEDDING)))
    for _ in range(20):
        lengths.ended(request(sampling=EMBEDDING), finished=True)
    assert lengths.curve(kind_of(request(sampling=EMBEDDING))) == curve


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_embeddings_and_chats_together_equal_solo_runs(seed: int) -> None:
    load = embedded(random_load(seed, aborts=seed % 2 == 1), seed)
    expected = play(load, ample(4))
    assert sum(bool(outcome.embedding) for outcome in expected.outcomes.values()) >= 3
    seen = play(load, random_shape(seed, expected))
    assert_same(load, expected, seen)
    balance(seen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_embeddings_and_chats_survive_a_retraction_at_every_step(seed: int) -> None:
    load = embedded(random_load(seed + 100), seed)
    expected = play(load, ample(4))
    shape = Shape(num_pages=demand(expected) * 2, chunk=6, retract_interval=1, max_retractions=-1, overlap=1 + seed % 2)
    seen = play(load, shape)
    assert_same(load, expected, seen)
    assert len(seen.events) > 20
    balance(seen)
