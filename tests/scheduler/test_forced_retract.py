"""A retraction at every single step of a generation changes nothing, whatever state the request carries.

The detokenizer's part runs too, so that stop strings and the joined text are compared as a client sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from ebbtide.detokenizer.process import Detokenizer
from ebbtide.messages import FinishReq, GenerateReq, SamplingParams, TextItem, TextParams, TokenBatch, TokenItem
from ebbtide.tokenization.vocabulary import sim_vocabulary

from .world import Shape, World, text

LENGTH = 64


@dataclass
class Client:
    """The output of one request that its client has received."""

    items: list[TextItem] = field(default_factory=list)

    @property
    def seen(self) -> tuple[str, list[int], object, object, object]:
        """The joined text, tokens, logprobs and finish reason."""
        logprobs = [entry for item in self.items for entry in item.logprobs or []]
        tokens = [token for item in self.items for token in item.tokens]
        return (
            "".join(item.text for item in self.items),
            tokens,
            logprobs,
            self.items[-1].finish,
            self.items[-1].matched,
        )


class TextWorld(World):
    """A world with a detokenizer, and a front that reports stop strings to the scheduler."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.detokenizer = Detokenizer(sim_vocabulary())
        self.clients: dict[str, Client] = {}

    def _take(self, item: TokenItem) -> None:
        super()._take(item)
        for out in self.detokenizer.convert(TokenBatch([item])).items:
            self.clients.setdefault(out.rid, Client()).items.append(out)
            if out.finish == "stop" and isinstance(out.matched, str):
                self.send(FinishReq(out.rid, out.num_output_tokens))


def generated(sampling: SamplingParams, shape: Shape, stop: tuple[str, ...] = ()) -> Client:
    world = TextWorld(shape)
    prompt = text("a prompt that fills some pages")
    world.send(GenerateReq(rids=("a",), prompt=prompt, sampling=sampling, text=TextParams(stop=stop)))
    world.run()
    assert world.detokenizer.num_open == 0
    if shape.retract_interval:
        spent = [event for event in world.events if event.cause == "test"]
        assert len(spent) == 1 or shape.retract_interval > len(world.outcomes["a"].tokens)
    return world.clients["a"]


def params(**kind: object) -> SamplingParams:
    return SamplingParams(max_tokens=LENGTH, ignore_eos=True, **({"temperature": 0.0} | kind))  # type: ignore[arg-type]


KINDS = {
    "greedy": params(),
    "seeded": params(temperature=0.9, seed=11, top_p=0.95),
    "penalties": params(frequency_penalty=0.7, presence_penalty=0.4, repetition_penalty=1.3),
    "seeded penalties": params(temperature=1.2, seed=-5, presence_penalty=1.0, top_k=20),
    "min_tokens": SamplingParams(
        max_tokens=LENGTH, temperature=0.0, min_tokens=50, stop_token_ids=tuple(range(60, 90))
    ),
    "logprobs": params(logprobs=3),
    "bias": params(logit_bias={65: 4.0, 66: -100.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_retraction_at_any_step_changes_nothing(kind: str, cache: bool, overlap: int) -> None:
    plain = generated(KINDS[kind], Shape(chunk=16)).seen
    assert len(plain[1]) >= 50
    for step in range(1, LENGTH + 2):
        shape = Shape(chunk=16, retract_interval=step, max_retractions=1, cache=cache, overlap=overlap)
        assert generated(KINDS[kind], shape).seen == plain, f"retracted at step {step}"


@pytest.mark.parametrize("overlap", [1, 2])
def test_a_retraction_at_any_step_changes_no_stop_string(overlap: int) -> None:
    """The stop string is in the middle of the output and spans several tokens."""
    whole = generated(params(), Shape()).seen[0]
    stop = whole[40:45]
    plain = generated(params(), Shape(chunk=16), (stop,)).seen
    assert plain[0] == whole[: whole.index(stop)]
    assert plain[4] == stop
    for step in range(1, 44):
        shape = Shape(chunk=16, retract_interval=step, max_retractions=1, overlap=overlap)
        assert generated(params(), shape, (stop,)).seen == plain, f"retracted at step {step}"


def test_retractions_in_every_chunk_of_a_prefill_change_nothing() -> None:
    plain = generated(params(), Shape(chunk=4)).seen
    base = Shape(chunk=4, retract_interval=1, max_retractions=5)
    for cache in (True, False):
        world = TextWorld(replace(base, cache=cache))
        world.send(GenerateReq(rids=("a",), prompt=text("a prompt that fills some pages"), sampling=params()))
        world.run()
        assert world.clients["a"].seen == plain
        assert len(world.events) == 5


@pytest.mark.parametrize("max_retractions", [-1, 10_000])
def test_forced_retractions_of_a_long_prompt_leave_it_time_to_get_further(max_retractions: int) -> None:
    """Two chunks of 4 tokens are computed between two retractions; they fill no page that could be cached."""
    shape = Shape(page_size=16, chunk=4, retract_interval=2, max_retractions=max_retractions)
    world = World(shape)
    world.generate("a", text("a prompt that needs many chunks " * 3), params())
    world.run(max_steps=2000)
    assert world.outcomes["a"].finish == "length"
    assert len(world.events) > LENGTH // 2
