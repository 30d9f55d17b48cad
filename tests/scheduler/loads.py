"""Random loads for the test bench: shared prefixes, identical prompts, re-sent conversations, choices, aborts.

Without identical prompts and re-sent conversations a load finds neither a prefix hit on the last token nor a page that
was published before it was computed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from ebbtide.messages import AbortReq, GenerateReq, SamplingParams
from ebbtide.paging import pages_for

from .world import Outcome, Shape, World, greedy, text

LOOSE = 700  # max_tokens that is much larger than the output
EMBEDDING = SamplingParams(max_tokens=0, embedding=True)
CONTEXT = 3500  # max_tokens if the client sends none: the rest of the context


@dataclass(frozen=True)
class Arrival:
    """One HTTP request. follows: the request whose prompt and answer precede ``prompt``."""

    at: int
    rid: str
    prompt: list[int]
    sampling: SamplingParams
    choices: int = 1
    follows: str | None = None
    abort_after: int | None = None
    namespace: str = ""
    priority: int = 0
    grammar: str = ""
    account: str = ""

    @property
    def rids(self) -> tuple[str, ...]:
        """One id per choice."""
        return tuple(f"{self.rid}.{index}" for index in range(self.choices))


def random_load(seed: int, count: int = 24, *, aborts: bool = False) -> list[Arrival]:
    """``count`` requests whose prompts and outputs have up to about 60 and 90 tokens."""
    rng = random.Random(seed)
    stems = [text("".join(rng.choice("abcdef") for _ in range(rng.randint(4, 48)))) for _ in range(3)]
    arrivals: list[Arrival] = []
    for index in range(count):
        stem = rng.choice(stems)
        prompt = stem[: rng.randint(1, len(stem))] + text("".join(rng.choice("xyz") for _ in range(rng.randint(0, 16))))
        arrival = Arrival(
            at=rng.randint(0, 25),
            rid=f"r{index}",
            prompt=prompt,
            sampling=random_sampling(rng),
            choices=rng.choice([1, 1, 1, 1, 3]),
            namespace=rng.choice(["", "", "", "salt:a"]),
            priority=rng.choice([0, 0, 5, -5]),
            account=f"key {index % 3}",
            abort_after=rng.randint(0, 30) if aborts and rng.random() < 0.25 else None,
        )
        kind = rng.random()
        if arrivals and kind < 0.25:
            arrival = replace(arrival, prompt=arrivals[-1].prompt, at=arrivals[-1].at, follows=arrivals[-1].follows)
        elif kind < 0.45 and (
            whole := [other for other in arrivals if other.abort_after is None and other.follows is None]
        ):
            arrival = replace(arrival, follows=rng.choice(whole).rid)
        arrivals.append(arrival)
    return arrivals


def resent_conversations() -> list[Arrival]:
    """Answers of 1 to 12 tokens, each sent again with one more word: answers end at every position within a page."""
    arrivals: list[Arrival] = []
    for index in range(1, 13):
        sampling = greedy(index, ignore_eos=True)
        arrivals.append(Arrival(index, f"a{index}", text(f"conversation {index}"), sampling))
        arrivals.append(Arrival(index, f"b{index}", text("!zzzz"), greedy(6), follows=f"a{index}"))
    return arrivals


def aborted_prefills() -> list[Arrival]:
    """Prompts that are cut off after each possible number of chunks, and sent again later."""
    arrivals: list[Arrival] = []
    for index in range(12):
        prompt = text(f"{index:02d}: a prompt of several chunks, cut off")
        arrivals.append(Arrival(40 * index, f"a{index}", prompt, greedy(4), abort_after=index))
        arrivals.append(Arrival(40 * index + 30, f"b{index}", prompt, greedy(8, ignore_eos=True)))
    return arrivals


def trimmed_prefixes() -> list[Arrival]:
    """A long prompt is cached, some of its pages are evicted, and it is sent again."""
    arrivals: list[Arrival] = []
    prompt = text("the quick brown fox jumps over the lazy dog; " * 3)
    for index in range(6):
        arrivals.append(Arrival(60 * index, f"a{index}", prompt, greedy(2)))
        filler = text(f"{index} " + "filler " * (4 + 2 * index))
        arrivals.append(Arrival(60 * index + 20, f"b{index}", filler, greedy(8, ignore_eos=True)))
    return arrivals


def random_sampling(rng: random.Random) -> SamplingParams:
    """Sampling parameters with every kind of state that a retraction could lose."""
    max_tokens = rng.choice([rng.randint(1, 90), rng.randint(1, 90), LOOSE, CONTEXT])
    ends = {"stop_token_ids": tuple(rng.sample(range(32, 127), 4))} if max_tokens > 90 else {}
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "ignore_eos": not ends},
        {"temperature": 0.8, "seed": rng.randint(-(2**62), 2**62), "top_k": rng.choice([0, 5]), "top_p": 0.9},
        {"temperature": 0.0, "frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.2},
        {"temperature": 0.0, "min_tokens": rng.randint(0, min(max_tokens, 90)), "logprobs": 2},
        {"temperature": 0.0, "stop_token_ids": tuple(rng.sample(range(32, 127), 4))},
        {"temperature": 1.0, "seed": 7, "logit_bias": {66: -100.0} if ends else {65: 100.0}, "min_p": 0.02},
    ]
    return SamplingParams(max_tokens=max_tokens, **(ends | rng.choice(kinds)))  # type: ignore[arg-type]


def scored(load: list[Arrival], seed: int) -> list[Arrival]:
    """The same load, but half of the requests ask for prompt log-probabilities; some of these have no output."""
    rng = random.Random(seed)
    kinds: list[dict[str, int]] = [
        {},
        {},
        {"prompt_logprobs": 2},
        {"prompt_logprobs": 0, "max_tokens": 0, "min_tokens": 0},
    ]
    return [
        replace(arrival, sampling=msgspec.structs.replace(arrival.sampling, **rng.choice(kinds))) for arrival in load
    ]


def embedded(load: list[Arrival], seed: int) -> list[Arrival]:
    """The same load, but half of the requests without a follow-up ask for an embedding instead of a text."""
    rng = random.Random(seed)
    followed = {arrival.follows for arrival in load}
    return [
        replace(arrival, sampling=EMBEDDING, grammar="")
        if arrival.rid not in followed and rng.random() < 0.5
        else arrival
        for arrival in load
    ]


def demand(world: World) -> int:
    """Pages that the largest request of a finished run needs alone: refusal and capacity count at least two tokens."""
    size = world.shape.page_size
    return max(
        pages_for(world.prompts[rid.split(".")[0]] + max(len(outcome.tokens), 2) - 1, size)
        for rid, outcome in world.outcomes.items()
    )


def play(load: list[Arrival], shape: Shape, build: Callable[[Shape], World] = World) -> World:
    """Run a load to its end. A follow-up is sent when the request that it follows has ended."""
    world = build(shape)
    waiting = sorted(load, key=lambda arrival: arrival.at)
    prompts: dict[str, list[int]] = {}
    aborts: list[tuple[int, str]] = []
    while waiting or world.inbox or not world.scheduler.idle:
        for arrival in [arrival for arrival in waiting if _due(arrival, world)]:
            waiting.remove(arrival)
            prompt = _prompt(arrival, prompts, world.outcomes)
            prompts[arrival.rid] = prompt
            world.prompts[arrival.rid] = len(prompt)
            world.send(
                GenerateReq(
                    rids=arrival.rids,
                    prompt=prompt,
                    sampling=arrival.sampling,
                    priority=arrival.priority,
                    account=arrival.account,
                    grammar=arrival.grammar,
                    namespace=arrival.namespace,
                )
            )
            if arrival.abort_after is not None:
                aborts.append((world.steps + arrival.abort_after, arrival.rids[-1]))
        for due in [entry for entry in aborts if entry[0] <= world.steps]:
            aborts.remove(due)
            world.send(AbortReq(due[1], "client"))
        before = world.steps
        world.step()
        world.read()
        if world.steps == before:
            world.steps += 1  # no step ran, but time advances
        assert world.steps < 20_000, "stuck"
    world.run()
    return world


def _due(arrival: Arrival, world: World) -> bool:
    if arrival.at > world.steps:
        return False
    if arrival.follows is None:
        return True
    before = world.outcomes.get(f"{arrival.follows}.0")
    return before is not None and before.finish is not None


def _prompt(arrival: Arrival, prompts: dict[str, list[int]], outcomes: dict[str, Outcome]) -> list[int]:
    if arrival.follows is None:
        return arrival.prompt
    return prompts[arrival.follows] + outcomes[f"{arrival.follows}.0"].tokens + arrival.prompt


def ample(page_size: int) -> Shape:
    """A pool in which no request ever waits, without a cache. All other runs are compared with it."""
    return Shape(num_pages=40_000 // page_size, page_size=page_size, num_rows=64, chunk=4096, cache=False)


def assert_same(load: list[Arrival], expected: World, seen: World) -> None:
    """Check for equal tokens, logprobs and finish reasons; of an aborted choice, compare only the existing tokens."""
    for arrival in load:
        for rid in arrival.rids:
            want, got = expected.outcomes[rid], seen.outcomes[rid]
            assert got.ends == 1, f"{rid} ended {got.ends} times"
            if "abort" in (got.finish, want.finish):
                shorter, longer = sorted((got.tokens, want.tokens), key=len)
                assert longer[: len(shorter)] == shorter, rid
                fewer, more = sorted((got.prompt_logprobs, want.prompt_logprobs), key=len)
                assert more[: len(fewer)] == fewer, rid
            else:
                assert (got.tokens, got.finish) == (want.tokens, want.finish), rid
                assert got.logprobs == want.logprobs, rid
                assert got.prompt_logprobs == want.prompt_logprobs, rid
                assert got.embedding == want.embedding, rid
