"""An exception or invalid logits of one request end only that request, with 500."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ebbtide.messages import GenerateReq, OpenSessionReq, SamplingParams
from ebbtide.model_runner.sim import sim as sim_module
from ebbtide.model_runner.sim import sim_sampling
from ebbtide.model_runner.sim.sim import SimRunner
from ebbtide.model_runner.sim.sim_sampling import SimRow
from ebbtide.model_runner.sim.sim_script import SimScript
from ebbtide.scheduler import item_results
from ebbtide.scheduler.batching import plan_items
from ebbtide.scheduler.dispatcher import Dispatcher
from ebbtide.scheduler.grammar.grammar_state import Grammars
from ebbtide.scheduler.item_results import ItemResults
from ebbtide.scheduler.outbox import Outbox
from ebbtide.scheduler.sessions.session_controller import SessionController

from .session_world import SessionWorld
from .world import Shape, World, grammar, greedy, text

LEN = 7  # prompt length of the request that fails; the other requests have other lengths
ANY = grammar("start: /[a-z ]{40}/")
# Uses penalties, log-probabilities and a draw.
PARAMS = SamplingParams(
    max_tokens=12, temperature=0.7, seed=5, frequency_penalty=0.3, repetition_penalty=1.1, logprobs=2, ignore_eos=True
)
Seed = Callable[[pytest.MonkeyPatch, Callable[[], bool]], None]


def patch(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_guilty: Callable[..., bool]) -> None:
    """Let a function raise before its work for calls that concern the guilty request."""
    original = getattr(owner, name)
    function = original.__func__ if hasattr(original, "__func__") else original

    def patched(*args: Any, **kwargs: Any) -> Any:
        if is_guilty(*args, **kwargs):
            raise RuntimeError("seeded")
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, classmethod(patched) if function is not original else patched)


def row_is_guilty(runner: SimRunner, item: Any) -> bool:
    row = runner._rows[item.row]
    return row is not None and row.prompt_len == LEN


def any_row_is_guilty(runner: SimRunner, items: Any) -> bool:
    return any(row_is_guilty(runner, item) for item in items)


LATE: dict[str, Seed] = {  # stages of every step
    "page table": lambda m, on: patch(m, SimRunner, "_prepare", lambda sim, item: on() and row_is_guilty(sim, item)),
    "K/V": lambda m, on: patch(m, SimRunner, "_write", lambda sim, items: on() and any_row_is_guilty(sim, items)),
    "contexts": lambda m, on: patch(
        m, SimRunner, "_contexts", lambda sim, items: on() and any_row_is_guilty(sim, items)
    ),
    "penalties": lambda m, on: patch(m, sim_sampling, "_adjusted", lambda row, *_: on() and row.prompt_len == LEN),
    "logprobs": lambda m, on: patch(m, sim_module, "choose", lambda row, *_: on() and row.prompt_len == LEN),
    "books": lambda m, on: patch(m, ItemResults, "_computed", lambda _, req, *__: on() and req.prompt_len == LEN),
    "tokens": lambda m, on: patch(m, ItemResults, "_sampled", lambda _, req, *__: on() and req.prompt_len == LEN),
    "output": lambda m, on: patch(m, Outbox, "emit", lambda _, req, *__: on() and req.prompt_len == LEN),
    "grammar mask": lambda m, on: patch(m, Grammars, "mask", lambda _, req: on() and req.prompt_len == LEN),
    "grammar advance": lambda m, on: patch(m, Grammars, "advance", lambda _, req, __: on() and req.prompt_len == LEN),
}
EARLY: dict[str, Seed] = {  # stages before the first token
    "row state": lambda m, on: patch(m, SimRow, "of", lambda _, init: init.prompt_len == LEN),
    "arrival": lambda m, on: patch(m, Dispatcher, "_generate", lambda _, message, __: len(message.prompt) == LEN),
    "prompt logprobs wanted": lambda m, on: patch(
        m, plan_items, "prompt_logprobs_for", lambda req, _: req.prompt_len == LEN
    ),
    "prompt logprobs computed": lambda m, on: patch(
        m, SimRunner, "_prompt_logprobs", lambda sim, item, _: row_is_guilty(sim, item)
    ),
    "prompt logprobs read": lambda m, on: patch(
        m, item_results, "record_prompt_logprobs", lambda req, *_: req.prompt_len == LEN
    ),
}


def send(world: World, rid: str, prompt: str, **changes: object) -> None:
    world.generate(rid, text(prompt), replace(PARAMS, **changes), grammar=ANY)


def solo(prompt: str, **changes: object) -> list[int]:
    world = World()
    send(world, "solo", prompt, **changes)
    return world.run()["solo"].tokens


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("stage", [*LATE, *EARLY])
def test_an_exception_in_any_stage_ends_only_its_request(
    stage: str, overlap: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"prompt_logprobs": 1} if stage.startswith("prompt logprobs") else {}
    expected = {name: solo(name, **more) for name in ("left", "the other one", "guilty!")}
    world = World(Shape(overlap=overlap, confines_faults=True))
    for name in expected:
        send(world, name, name, **more)
    with monkeypatch.context() as seeded:
        (LATE | EARLY)[stage](
            seeded, lambda: "guilty!" in world.outcomes and len(world.outcomes["guilty!"].tokens) >= 3
        )
        outcomes = world.run()
    guilty = outcomes.pop("guilty!")
    assert [(abort.status, abort.code) for abort in guilty.aborts] == [(500, "internal_error")]
    assert guilty.tokens == expected["guilty!"][: len(guilty.tokens)]
    assert (len(guilty.tokens) >= 3) is (stage in LATE)
    assert {name: outcome.tokens for name, outcome in outcomes.items()} == {
        name: tokens for name, tokens in expected.items() if name != "guilty!"
    }
    assert world.scheduler.state.metrics.totals["num_aborted_requests_total{reason=internal_error}"] == 1
    assert any("guilty!" in record.getMessage() or "GenerateReq" in record.getMessage() for record in caplog.records)
    send(world, "again", "guilty!", **more)
    assert world.run()["again"].tokens == expected["guilty!"]


def test_an_exception_of_the_whole_batch_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {name: solo(name) for name in ("left", "the other one")}
    patch(monkeypatch, SimRunner, "_write", lambda _, items: len(items) > 1)
    world = World(Shape(confines_faults=True))
    for name in expected:
        send(world, name, name)
    assert {name: outcome.tokens for name, outcome in world.run().items()} == expected


def test_a_session_call_that_raises_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SessionWorld(Shape(sessions=True, confines_faults=True))
    with monkeypatch.context() as seeded:
        patch(seeded, SessionController, "handle_session_req", lambda _, message: isinstance(message, OpenSessionReq))
        reply = world.open("s")
    assert (reply.status, reply.code) == (500, "internal_error")
    assert world.open("s").status == 200


# ---------------------------------------------------------------------- invalid logits

SCRIPT = SimScript({b"bad": [*b"abc", None]})


def scripted(world: World) -> World:
    world.runner._script = SCRIPT
    return world


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("changes", [{}, {"logprobs": 2}, {"frequency_penalty": 0.5}])
def test_invalid_logits_end_the_request_after_the_tokens_before_it(
    changes: dict[str, object], constrained: bool, overlap: int, caplog: pytest.LogCaptureFixture
) -> None:
    neighbour = solo("a neighbour")
    world = scripted(World(Shape(overlap=overlap)))
    send(world, "neighbour", "a neighbour")
    fields = {"grammar": ANY} if constrained else {}
    world.generate("bad", text("bad"), greedy(9, **changes), **fields)
    with caplog.at_level(logging.WARNING):
        outcomes = world.run()
    bad = outcomes["bad"]
    assert (bytes(bad.tokens), bad.finish, len(bad.logprobs)) == (b"abc", "abort", 3 if "logprobs" in changes else 0)
    assert [(abort.status, abort.code, abort.num_output_tokens) for abort in bad.aborts] == [
        (500, "model_output_invalid", 3)
    ]
    assert outcomes["neighbour"].tokens == neighbour
    totals = world.scheduler.state.metrics.totals
    assert totals["num_invalid_logits_total"] == 1
    assert totals["num_aborted_requests_total{reason=model_output_invalid}"] == 1
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().startswith("Request bad ends in step ")
    assert record.rid == "bad"  # type: ignore[attr-defined]


def test_invalid_logits_before_a_prompt_token_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    original = sim_sampling._logits

    def spoiled(context: int) -> Any:
        return original(context) * float("nan")

    neighbour = solo("a neighbour")
    world = World()
    send(world, "neighbour", "a neighbour")
    for _ in range(3):
        world.step()
    world.generate("echo", text("x" * 10), greedy(0, prompt_logprobs=1))
    computed = sim_sampling.logprob_of

    def logprob_of(context: int, target: int, num_top: int) -> Any:
        with pytest.MonkeyPatch.context() as seeded:
            seeded.setattr(sim_sampling, "_logits", spoiled)
            return computed(context, target, num_top)

    monkeypatch.setattr(sim_module, "logprob_of", logprob_of)
    outcomes = world.run()
    assert [(abort.status, abort.code) for abort in outcomes["echo"].aborts] == [(500, "model_output_invalid")]
    assert outcomes["neighbour"].tokens == neighbour


def test_invalid_logits_roll_back_the_turn_of_a_session() -> None:
    world = SessionWorld()
    scripted(world)
    world.open("s")
    world.say("s", "one", "hello")
    before = world.info("s")
    world.runner._script = SimScript({b"hello": [None] * 40})
    failed = world.say("s", "two", " and")
    assert [abort.code for abort in failed.aborts] == ["model_output_invalid"]
    assert world.info("s").num_tokens == before.num_tokens
    world.runner._script = SimScript({})
    assert world.say("s", "three", " then").finish == "length"


LONG = "a prefix that fills several pages, then "


def cached(world: World) -> int:
    return world.scheduler.state.pool.accounting().evictable


@pytest.mark.parametrize("sessions", [False, True])
def test_no_later_request_uses_pages_from_before_invalid_logits(sessions: bool) -> None:
    """The K/V of the first chunks, which were published before the logits were seen, may be invalid already."""
    world = World(Shape(chunk=8, sessions=sessions))
    world.generate("good", text(LONG + "one good request"), greedy(4))
    world.run()
    kept = cached(world)
    world.runner._script = SimScript({(LONG + "bad").encode(): [None]})
    world.generate("other", text("another request, in the cache"), greedy(4))
    world.run()
    other = cached(world) - kept
    world.generate("bad", text(LONG + "bad"), greedy(4))
    assert world.run()["bad"].aborts[0].code == "model_output_invalid"
    assert cached(world) == other > 0, "its prefix is gone, with what continued it; other prefixes remain"
    world.runner._script = SimScript({})
    world.generate("again", text(LONG + "bad"), greedy(4))
    assert world.run()["again"].cached_tokens == 0


def test_pages_from_before_invalid_logits_stay_while_another_request_uses_them() -> None:
    expected = solo(LONG + "neighbour", max_tokens=40)
    world = World(Shape(chunk=8))
    send(world, "neighbour", LONG + "neighbour", max_tokens=40)
    for _ in range(10):
        world.step()
    world.runner._script = SimScript({(LONG + "bad").encode(): [None]})
    world.generate("bad", text(LONG + "bad"), greedy(4))
    outcomes = world.run()
    assert outcomes["bad"].aborts[0].code == "model_output_invalid"
    assert outcomes["neighbour"].tokens == expected


def test_one_invalid_choice_leaves_the_scheduler_to_the_others() -> None:
    world = scripted(World())
    world.send(GenerateReq(("a", "b"), text("bad"), greedy(9)))
    outcomes = world.run()
    assert {name: outcome.finish for name, outcome in outcomes.items()} == {"a": "abort", "b": "abort"}
