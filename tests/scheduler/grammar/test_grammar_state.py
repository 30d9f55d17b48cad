"""Answers within a grammar, with the scheduler and the simulated model: memory pressure does not change them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest

from ebbtide.errors import GrammarError
from ebbtide.messages import AbortReq, FinishReq, GenerateReq, SamplingParams, TokenLogprob
from ebbtide.scheduler.grammar.grammar_state import Compiled, Grammars, NoCompiler
from ebbtide.scheduler.health.dump import waiting_reasons
from ebbtide.scheduler.metrics import SchedulerMetrics
from ebbtide.scheduler.request import Request
from ebbtide.tokenization.vocabulary import SIM_EOS

from ..loads import Arrival, ample, assert_same, random_load
from ..loads import play as play_load
from ..make import request
from ..test_equality import random_shape
from ..world import Compiler, Outcome, Shape, World, grammar, greedy, text

WORDS = grammar("start: /[a-z]{3,12}( [a-z]{3,12}){2,5}\\./")
DIGITS = grammar("start: /[0-9]+/")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,9}$"},
        "size": {"type": "integer", "minimum": 10, "maximum": 99},
        "kinds": {"type": "array", "items": {"enum": ["low", "high"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "size", "kinds"],
    "additionalProperties": False,
}
OBJECT = grammar(f"start: %json {json.dumps(SCHEMA)}")
AMPLE = Shape(num_pages=4000, num_rows=64, chunk=4096, cache=False)


def written(outcome: Outcome) -> str:
    return bytes(token for token in outcome.tokens if token < 256).decode()


def is_object(answer: str) -> bool:
    value = json.loads(answer)
    return (
        list(value) == ["name", "size", "kinds"]
        and re.fullmatch("[a-z]{2,9}", value["name"]) is not None
        and 10 <= value["size"] <= 99
        and set(value["kinds"]) <= {"low", "high"}
        and 1 <= len(value["kinds"]) <= 3
    )


def play(shape: Shape, compiler: Compiler | None = None, count: int = 6, **kwargs: object) -> World:
    """Run ``count`` requests with three kinds of grammar and as many without one; some have three choices."""
    world = World(shape, compiler=compiler)
    for index in range(count):
        rids = tuple(f"g{index}.{choice}" for choice in range(3 if index % 3 == 0 else 1))
        sampling = SamplingParams(max_tokens=60, temperature=index % 2 * 0.9, seed=index, logprobs=1)
        prompt = text(f"{index % 2} tell me something of the sea")
        chosen = (WORDS, OBJECT, DIGITS)[index % 3]
        world.send(GenerateReq(rids=rids, prompt=prompt, sampling=replace_of(sampling, **kwargs), grammar=chosen))
        world.generate(f"plain{index}", prompt, greedy(20, ignore_eos=True))
    world.run()
    return world


def replace_of(sampling: SamplingParams, **fields: object) -> SamplingParams:
    values = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return SamplingParams(**(values | fields))


@cache
def ample_answers(count: int) -> dict[str, tuple[list[int], list[TokenLogprob], str | None]]:
    """The answers if no request ever waits."""
    return answers(play(AMPLE, count=count))


def answers(world: World) -> dict[str, tuple[list[int], list[TokenLogprob], str | None]]:
    return {rid: (outcome.tokens, outcome.logprobs, outcome.finish) for rid, outcome in world.outcomes.items()}


def test_every_answer_matches_its_grammar_and_other_requests_are_unaffected() -> None:
    world = play(AMPLE)
    for rid, outcome in world.outcomes.items():
        assert outcome.ends == 1
        if outcome.finish == "length" or rid.startswith("plain"):
            continue
        index = int(rid[1])
        assert is_object(written(outcome)) if index % 3 == 1 else re.fullmatch(PATTERNS[index % 3], written(outcome)), (
            rid
        )
    plain = World(AMPLE)
    plain.generate("plain1", text("1 tell me something of the sea"), greedy(20, ignore_eos=True))
    assert plain.run()["plain1"].tokens == world.outcomes["plain1"].tokens
    assert {outcome.finish for outcome in world.outcomes.values()} == {"stop", "length"}


PATTERNS = {0: "[a-z]{3,12}( [a-z]{3,12}){2,5}\\.", 2: "[0-9]+"}


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1, 2, 5])
@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("chunk", [3, 64])
def test_a_retraction_changes_nothing(interval: int, overlap: int, chunk: int) -> None:
    expected = ample_answers(6)
    shape = Shape(num_pages=80, num_rows=6, chunk=chunk, overlap=overlap, retract_interval=interval, max_retractions=-1)
    world = play(shape)
    assert answers(world) == expected
    assert world.scheduler.state.metrics.totals["num_retracted_requests_total"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("host_pages", [0, 200])
@pytest.mark.parametrize("policy", ["fcfs", "lpm", "priority"])
def test_a_small_pool_and_a_late_grammar_change_nothing(
    policy: Literal["fcfs", "lpm", "priority"], host_pages: int
) -> None:
    expected = ample_answers(9)
    shape = Shape(num_pages=34, num_rows=8, chunk=16, overlap=2, policy=policy, host_pages=host_pages)
    world = play(shape, Compiler(delay=7), count=9)
    assert answers(world) == expected
    assert world.scheduler.state.grammars.num_waiting == 0


def mask_before_the_last_token(patch: pytest.MonkeyPatch) -> None:
    """Plan an item of a row before the result of its previous token has arrived."""
    late = property(lambda req: req.samples_in_flight > 0 and req.final_token_in_flight)
    patch.setattr(Request, "awaits_result", late)


def mask_of_the_first_token_for_all(patch: pytest.MonkeyPatch) -> None:
    mask = Grammars.mask
    seen: dict[str, bytes] = {}
    patch.setattr(Grammars, "mask", lambda self, req: seen.setdefault(req.rid, mask(self, req)))


@pytest.mark.parametrize(
    "bug",
    [mask_before_the_last_token, mask_of_the_first_token_for_all],
    ids=lambda bug: bug.__name__,
)
def test_a_seeded_bug_is_caught(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ample_answers(6)
    bug(monkeypatch)
    shape = Shape(num_pages=80, num_rows=6, chunk=64, overlap=2, retract_interval=2, max_retractions=-1)
    assert answers(play(shape)) != expected


def test_a_lost_position_is_restored_from_the_outputs() -> None:
    world = World(Shape(overlap=2))
    world.generate("a", text("x"), greedy(40), grammar=WORDS)
    world.generate("b", text("x"), greedy(40), grammar=OBJECT)
    lost = World(Shape(overlap=2))
    lost.inbox.extend(world.inbox)
    expected = answers_after(world)
    while lost.inbox or not lost.scheduler.idle:
        lost.step()
        for req in lost.scheduler.state.running:
            lost.scheduler.state.grammars.add(req)  # discards its position
            lost.scheduler.state.grammars.poll()
    assert answers(lost) == expected


def answers_after(world: World) -> dict[str, tuple[list[int], list[TokenLogprob], str | None]]:
    world.run()
    return answers(world)


def mixed_load(seed: int) -> list[Arrival]:
    """A random load in which two of three requests have a grammar, some that end and some that do not."""
    rng = random.Random(seed)
    kinds = ["", WORDS, OBJECT, DIGITS, grammar("start: /(.|\\n)*/"), grammar('start: "yes" | "no"')]
    return [
        replace(arrival, grammar=rng.choice(kinds) if rng.random() < 0.8 else "")
        for arrival in random_load(seed, aborts=seed % 4 == 0)
    ]


def check_mixed(seed: int) -> int:
    load = mixed_load(seed)
    expected = play_load(load, ample((1, 4, 16)[seed % 3]))
    seen = play_load(load, random_shape(seed, expected), build=lambda shape: World(shape, compiler=Compiler(seed % 5)))
    assert_same(load, expected, seen)
    assert not any(outcome.aborts for outcome in seen.outcomes.values())
    return seen.scheduler.state.metrics.totals["num_retracted_requests_total"]


@pytest.mark.slow
def test_random_loads_give_the_tokens_of_an_ample_pool() -> None:
    assert sum(check_mixed(seed) for seed in range(8)) > 3


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 1300, 100))
def test_random_loads_give_the_tokens_of_an_ample_pool_at_length(first: int) -> None:
    for seed in range(first, first + 100):
        check_mixed(seed)


def test_an_answer_ends_with_stop_when_the_grammar_allows_no_further_token() -> None:
    world = World()
    world.generate("a", text("x"), greedy(100), grammar=grammar('start: "yes" | "no"'))
    outcome = world.run()["a"]
    assert (written(outcome), outcome.finish) in {("yes", "stop"), ("no", "stop")}
    assert SIM_EOS not in outcome.tokens


def test_the_last_token_of_a_grammar_is_part_of_the_answer_and_not_a_stop_token() -> None:
    world = World()
    world.generate("a", text("x"), greedy(100), grammar=grammar('start: "z"'))
    world.run()
    assert [(item.tokens, item.finish, item.stop_token) for item in world.items] == [
        ([ord("z")], None, None),
        ([], "stop", None),
    ]


def test_an_answer_complete_with_its_last_allowed_token_has_stopped() -> None:
    world = World()
    world.generate("a", text("x"), greedy(3), grammar=grammar('start: "yes"'))
    world.generate("b", text("x"), greedy(2), grammar=grammar('start: "yes"'))
    world.run()
    assert (written(world.outcomes["a"]), world.outcomes["a"].finish) == ("yes", "stop")
    assert (written(world.outcomes["b"]), world.outcomes["b"].finish) == ("ye", "length")


@pytest.mark.parametrize(
    "more",
    [
        {"min_tokens": 50},
        {"ignore_eos": True},
        {"logit_bias": {ord("y"): -100.0, ord("e"): -100.0, ord("x"): 100.0}},
        {"stop_token_ids": (ord("q"),)},
        {"temperature": 2.0, "min_p": 1.0, "top_k": 1},
    ],
)
def test_no_other_field_breaks_a_grammar(more: dict[str, object]) -> None:
    world = World()
    sampling = replace_of(greedy(100), **more)
    world.generate("a", text("x"), sampling, grammar=grammar('start: "yes"'))
    outcome = world.run()["a"]
    assert (written(outcome), outcome.finish) == ("yes", "stop")


def test_without_an_end_of_text_an_open_grammar_goes_on_until_the_limit() -> None:
    world = World()
    world.generate("a", text("x"), greedy(400, ignore_eos=True), grammar=DIGITS)
    outcome = world.run()["a"]
    assert (len(outcome.tokens), outcome.finish) == (400, "length")
    assert written(outcome).isdecimal()


def test_min_tokens_keeps_an_open_grammar_from_ending_early() -> None:
    for seed in range(8):
        world = World()
        sampling = SamplingParams(max_tokens=200, min_tokens=30, seed=seed, logit_bias={SIM_EOS: 100.0})
        world.generate("a", text("x"), sampling, grammar=DIGITS)
        outcome = world.run()["a"]
        assert len(outcome.tokens) == 31
        assert written(outcome).isdecimal()


def test_a_stop_token_of_the_client_ends_within_a_grammar() -> None:
    world = World()
    sampling = greedy(100, stop_token_ids=(ord("."),))
    world.generate("a", text("x"), sampling, grammar=grammar("start: /[a-z]+\\.[a-z]+/"))
    outcome = world.run()["a"]
    if outcome.finish == "stop":
        assert re.fullmatch("[a-z]+\\.", written(outcome))
        assert world.items[-1].stop_token == ord(".")


def test_a_stop_string_ends_a_request_in_its_grammar_like_any_other() -> None:
    world = World()
    world.generate("a", text("x"), greedy(100, ignore_eos=True), grammar=DIGITS)
    while len(world.outcomes.get("a", Outcome()).tokens) < 9:
        world.step()
    world.send(FinishReq("a", 5))
    world.run()
    assert world.outcomes["a"].finish == "stop"
    assert world.scheduler.idle


def test_others_do_not_wait_for_a_grammar_and_its_request_keeps_its_place() -> None:
    world = World(Shape(num_rows=1), compiler=Compiler(delay=4))
    world.generate("slow", text("x"), greedy(3, ignore_eos=True), grammar=DIGITS)
    for index in range(6):
        world.generate(f"r{index}", text(f"prompt {index}"), greedy(3, ignore_eos=True))
    world.run()
    ends = [item.rid for item in world.items if item.finish]
    assert ends[0] == "r0"
    assert ends.index("slow") < ends.index("r3")


def test_the_gauge_and_the_dump_show_requests_that_wait_for_a_grammar() -> None:
    world = World(compiler=Compiler(delay=3))
    world.generate("slow", text("x"), greedy(3), grammar=DIGITS)
    world.step()
    assert world.scheduler.snapshot().gauges["num_grammar_queue_reqs"] == 1
    assert waiting_reasons(world.scheduler.state) == ("slow: its grammar is being compiled",)
    assert not world.scheduler.idle
    world.run()
    assert world.scheduler.snapshot().gauges["num_grammar_queue_reqs"] == 0


def test_an_abort_ends_a_request_that_waits_for_its_grammar() -> None:
    world = World(compiler=Compiler(delay=10**6))
    world.send(GenerateReq(rids=("a", "b"), prompt=text("x"), sampling=greedy(3), grammar=DIGITS))
    world.step()
    world.send(AbortReq("a", "client"))
    world.step()
    assert not world.scheduler.idle
    world.send(AbortReq("b", "client"))
    world.step()
    assert world.scheduler.idle
    assert world.scheduler.state.grammars.num_waiting == 0


def test_a_grammar_that_cannot_be_compiled_ends_its_request_only() -> None:
    world = World()
    world.generate("bad", text("x"), greedy(5), grammar=grammar("start: /(/"))
    world.generate("good", text("x"), greedy(5), grammar=grammar('start: "yes"'))
    world.run()
    (abort,) = world.outcomes["bad"].aborts
    assert (abort.status, abort.code, abort.num_output_tokens) == (500, "grammar_failed", 0)
    assert "invalid regex" in abort.message
    assert written(world.outcomes["good"]) == "yes"


def test_all_choices_end_with_a_grammar_that_cannot_be_compiled() -> None:
    world = World(compiler=Compiler(delay=3))
    bad = GenerateReq(rids=("a", "b"), prompt=text("x"), sampling=greedy(3), grammar=grammar("start: /(/"))
    world.send(bad)
    world.run()
    assert [len(world.outcomes[rid].aborts) for rid in ("a", "b")] == [1, 1]


def test_a_server_without_a_compiler_aborts_requests_with_a_grammar() -> None:
    world = World(compiler=NoCompiler())
    world.generate("a", text("x"), greedy(5), grammar=grammar('start: "yes"'))
    world.run()
    assert world.outcomes["a"].tokens == []
    assert [abort.status for abort in world.outcomes["a"].aborts] == [500]


class Failing:
    """A matcher that raises before token number ``at``, or whose mask allows no token there."""

    def __init__(self, at: int, *, silently: bool) -> None:
        self.mask, self.complete = bytes([255] * 33), False
        self._left, self._silently = at, silently

    def copy(self) -> Failing:
        return Failing(self._left, silently=self._silently)

    def advance(self, token: int) -> None:
        self._left -= 1
        if token < 0 or (not self._left and not self._silently):
            raise GrammarError("too costly")
        if not self._left:
            self.mask = bytes(33)

    def without_end(self) -> bytes:
        return self.mask


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("overlap", [1, 2])
def test_a_matcher_that_fails_ends_its_request_only(silently: bool, overlap: int) -> None:
    class FailingCompiler(Compiler):
        def poll(self, grammar: str) -> Compiled | None:
            compiled = super().poll(grammar)
            assert compiled is not None
            return replace(compiled, matcher=Failing(4, silently=silently))

    world = World(Shape(overlap=overlap), compiler=FailingCompiler())
    world.generate("bad", text("x"), greedy(50, ignore_eos=True, frequency_penalty=1.0), grammar=DIGITS)
    world.generate("good", text("y"), greedy(50, ignore_eos=True))
    world.run()
    (abort,) = world.outcomes["bad"].aborts
    assert (abort.status, abort.code) == (500, "grammar_failed")
    assert abort.num_output_tokens == len(world.outcomes["bad"].tokens) == 3 + silently
    assert world.outcomes["bad"].finish == "abort"
    assert (len(world.outcomes["good"].tokens), world.outcomes["good"].finish) == (50, "length")


def test_a_removed_token_is_removed_from_the_grammar_state() -> None:
    grammars = Grammars(Compiler(), SchedulerMetrics())
    req = request("a", prompt=2, grammar=grammar('start: "abc" | "axy"'))
    grammars.add(req)
    assert grammars.poll() == []
    for token in b"ab":
        assert not grammars.advance(req, token)
        req.known.append(token)
    first = grammars.mask(req)
    del req.known[-1:]
    assert not grammars.advance(req, ord("x"))
    req.known.append(ord("x"))
    assert grammars.mask(req) != first
    assert grammars.advance(req, ord("y"))
