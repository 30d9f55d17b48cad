"""Streaming sessions in the scheduler: every turn gives the output of the whole conversation."""

from __future__ import annotations

import pytest

from ebbtide.errors import InvariantViolation
from ebbtide.messages import AbortReq, FinishReq
from ebbtide.scheduler.memory.session_aware_cache import SessionAwareCache

from ..session_world import SessionWorld, alone
from ..world import Outcome, Shape, greedy, text

EIGHT = greedy(8, ignore_eos=True)


def reused(world: SessionWorld, outcome: Outcome, before: int) -> bool:
    """True if all of the ``before`` tokens of the session, except at most one page, were cached."""
    return before - world.shape.page_size <= outcome.cached_tokens <= before


@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
@pytest.mark.parametrize("overlap", [1, 2])
def test_every_turn_equals_the_whole_conversation_and_computes_only_its_new_tokens(cache: bool, overlap: int) -> None:
    world = SessionWorld(Shape(sessions=True, cache=cache, overlap=overlap))
    world.open("s")
    conversation: list[int] = []
    for index in range(10):
        prompt = f"and then number {index}? "
        outcome = world.say("s", f"t{index}", prompt)
        assert outcome.tokens == alone(conversation + text(prompt), EIGHT)
        assert outcome.prompt_tokens == len(conversation) + len(prompt)
        assert reused(world, outcome, len(conversation))
        conversation += text(prompt) + outcome.tokens
    assert world.info("s").num_tokens == len(conversation)
    world.close("s")
    assert world.pool.accounting().session_held == 0


def test_a_session_without_turns_or_kv_is_cold_then_running_then_warm() -> None:
    world = SessionWorld()
    world.open("s")
    assert world.info("s").state == "cold"
    world.turn("s", "a", "hello there")
    world.step()
    assert world.info("s").state == "running"
    world.run()
    info = world.info("s")
    assert (info.state, info.num_turns, info.num_tokens) == ("warm", 1, len("hello there") + 8)
    assert info.held_tokens == world.pool.accounting().session_held * world.shape.page_size > 0


def test_evicted_session_pages_are_recomputed() -> None:
    world = SessionWorld(Shape(num_pages=24, sessions=True))
    world.open("s")
    first = world.say("s", "a", "a conversation that begins")
    world.generate("big", text("x" * 80), EIGHT)
    world.run()
    assert world.info("s").state == "cold"
    outcome = world.say("s", "b", " and goes on")
    assert outcome.tokens == alone(text("a conversation that begins") + first.tokens + text(" and goes on"), EIGHT)


def test_the_last_pages_of_the_least_recently_used_session_are_evicted_first() -> None:
    world = SessionWorld(Shape(num_pages=32, sessions=True, cache=False))
    for name in ("old", "new"):
        world.open(name)
        world.say(name, f"{name}1", "x" * 24)  # 31 tokens with K/V: 7 full pages
    world.generate("plain", text("y" * 72), greedy(1))  # 18 pages are free, so no page is evicted
    world.run()
    assert (world.info("old").held_tokens, world.info("new").held_tokens) == (28, 28)
    world.generate("plain2", text("z" * 80), greedy(1))
    world.run()
    assert (world.info("old").held_tokens, world.info("new").held_tokens) == (20, 28)


def test_a_prefix_used_later_by_other_requests_outlives_the_slot_after_it() -> None:
    world = SessionWorld(Shape(num_pages=24, sessions=True))
    world.open("s")
    shared = "a system prompt of 28 chars!"
    world.say("s", "a", shared)
    world.generate("other", text(shared + "?"), greedy(1))
    world.run()
    world.generate("big", text("b" * 66), greedy(1))
    world.run()
    assert world.info("s").state == "cold"
    again = world.say("s", "b", "more")
    assert again.cached_tokens == len(shared)


def test_an_aborted_turn_leaves_kv_and_tokens_of_the_session_unchanged() -> None:
    world = SessionWorld()
    world.open("s")
    first = world.say("s", "a", "hello there, you")
    held = world.info("s").held_tokens
    world.turn("s", "b", " what?", greedy(50, ignore_eos=True))
    for _ in range(10):
        world.step()
    world.abort("b")
    world.run()
    assert world.info("s").held_tokens == held
    outcome = world.say("s", "c", " why?")
    assert outcome.tokens == alone(text("hello there, you") + first.tokens + text(" why?"), EIGHT)
    assert reused(world, outcome, len("hello there, you") + 8)


@pytest.mark.parametrize("interval", [1, 2, 3, 7])
@pytest.mark.parametrize("host_pages", [0, 64], ids=["recompute", "host tier"])
@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
def test_a_retracted_turn_gives_the_same_output(interval: int, host_pages: int, cache: bool) -> None:
    shape = Shape(sessions=True, retract_interval=interval, host_pages=host_pages, cache=cache, max_retractions=-1)
    world = SessionWorld(shape)
    world.open("s")
    conversation: list[int] = []
    retractions = 0
    for index in range(5):
        prompt = f"{index} how about now and then? "
        world.generate(f"p{index}", text("plain"), greedy(12, ignore_eos=True))
        outcome = world.say("s", f"t{index}", prompt)
        assert outcome.tokens == alone(conversation + text(prompt), EIGHT)
        retractions += outcome.pressure.num_retractions if outcome.pressure else 0
        conversation += text(prompt) + outcome.tokens
    assert retractions


def test_a_second_open_turn_is_rejected_without_side_effects() -> None:
    world = SessionWorld()
    world.open("s")
    world.turn("s", "a", "hello")
    world.turn("s", "b", "me too")
    assert world.refusal("b") == (409, "session_busy")
    world.turn("s", "c", "and me")
    assert world.refusal("c") == (409, "session_busy")
    outcome = world.run()["a"]
    assert outcome.tokens == alone(text("hello"), EIGHT)
    assert world.say("s", "d", " on").tokens == alone(text("hello") + outcome.tokens + text(" on"), EIGHT)


def test_of_two_first_turns_in_one_batch_one_is_rejected() -> None:
    world = SessionWorld()
    world.open("s")
    world.turn("s", "a", "first")
    world.turn("s", "b", "first")
    outcomes = world.run()
    assert outcomes["a"].finish == "length"
    assert [abort.code for abort in outcomes["b"].aborts] == ["session_busy"]


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_closing_during_a_turn_lets_it_finish_and_frees_its_kv(steps: int) -> None:
    world = SessionWorld()
    world.open("s")
    first = world.say("s", "a", "hello there")
    world.turn("s", "b", " and on")
    for _ in range(steps):
        world.step()
    world.receive()
    assert world.close("s").status == 200
    world.turn("s", "c", " late")
    assert world.refusal("c") == (410, "session_closed")
    outcome = world.run()["b"]
    assert outcome.tokens == alone(text("hello there") + first.tokens + text(" and on"), EIGHT)
    assert world.pool.accounting().session_held == 0


def test_a_session_reopened_during_an_old_turn_is_a_new_session() -> None:
    world = SessionWorld()
    world.open("s")
    world.say("s", "a", "hello there")
    world.turn("s", "b", " and on")
    world.step()
    world.close("s")
    world.open("s")
    world.turn("s", "c", "afresh")
    outcomes = world.run()
    assert outcomes["c"].tokens == alone(text("afresh"), EIGHT)
    assert world.info("s").num_tokens == len("afresh") + 8


def test_a_stop_string_ends_the_turn_in_the_session_too() -> None:
    world = SessionWorld()
    world.open("s")
    world.turn("s", "a", "hello there", greedy(40, ignore_eos=True))
    for _ in range(12):
        world.step()
    tokens = world.outcomes["a"].tokens[:5]
    world.send(FinishReq("a", 5))
    world.run()
    assert world.info("s").num_tokens == len("hello there") + 5
    outcome = world.say("s", "b", " more")
    assert outcome.tokens == alone(text("hello there") + tokens + text(" more"), EIGHT)


@pytest.mark.parametrize("num_shown", [0, 1, 3, 5])
def test_a_session_continues_from_the_shown_tokens(num_shown: int) -> None:
    world = SessionWorld()
    world.open("s")
    world.turn("s", "a", "hello there", greedy(40, ignore_eos=True))
    for _ in range(12):
        world.step()
    tokens = world.outcomes["a"].tokens[:num_shown]
    world.send(FinishReq("a", 5, num_shown))
    world.run()
    assert world.info("s").num_tokens == len("hello there") + num_shown
    outcome = world.say("s", "b", " more")
    assert outcome.tokens == alone(text("hello there") + tokens + text(" more"), EIGHT)


def test_a_late_stop_string_truncates_the_turn() -> None:
    world = SessionWorld()
    world.open("s")
    outcome = world.say("s", "a", "hello there", greedy(30, ignore_eos=True))
    world.send(FinishReq("a", 5))
    world.receive()
    assert world.info("s").num_tokens == len("hello there") + 5
    assert world.info("s").held_tokens <= len("hello there") + 5
    again = world.say("s", "b", " more")
    assert again.tokens == alone(text("hello there") + outcome.tokens[:5] + text(" more"), EIGHT)


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
def test_a_stop_string_ends_a_retracted_turn_as_a_commit(waits: bool) -> None:
    world = SessionWorld(Shape(sessions=True, retract_interval=5, num_rows=2))
    world.open("s")
    world.generate("other", text("other"), greedy(60, ignore_eos=True))
    world.turn("s", "a", "hello there", greedy(60, ignore_eos=True))
    while not (req := world.scheduler.state.requests.get("a")) or not req.history.retraction_count:
        world.step()
    if not waits:
        world.step()
        world.step()
    kept = world.outcomes["a"].tokens[:2]
    world.send(FinishReq("a", 2))
    world.run()
    outcome = world.say("s", "b", " more")
    assert outcome.tokens == alone(text("hello there") + kept + text(" more"), EIGHT)


def test_a_turn_that_is_too_long_is_rejected_before_any_change() -> None:
    world = SessionWorld(Shape(sessions=True, context_length=64))
    world.open("s")
    first = world.say("s", "a", "hello there")
    before = world.info("s")
    world.turn("s", "b", "x" * 60)
    assert world.refusal("b") == (400, "context_length_exceeded")
    world.turn("s", "c", "short", greedy(50))
    assert world.refusal("c") == (400, "context_length_exceeded")
    assert world.info("s") == before
    outcome = world.say("s", "d", " on")
    assert outcome.tokens == alone(text("hello there") + first.tokens + text(" on"), EIGHT)


def test_a_turn_without_max_tokens_gets_the_rest_of_the_context() -> None:
    world = SessionWorld(Shape(sessions=True, context_length=64))
    world.open("s")
    world.say("s", "a", "hello there")
    world.turn("s", "b", " on", greedy(64, ignore_eos=True), context_limit=True)
    assert len(world.run()["b"].tokens) == 64 - len("hello there") - 8 - len(" on")


def test_a_turn_larger_than_the_pool_is_rejected() -> None:
    world = SessionWorld(Shape(sessions=True, num_pages=8))
    world.open("s")
    world.say("s", "a", "hello there")
    world.turn("s", "b", "x" * 30)
    assert world.refusal("b") == (400, "context_length_exceeded")


def test_a_turn_rejected_by_the_queue_leaves_the_session_unchanged() -> None:
    world = SessionWorld(Shape(sessions=True, num_rows=1, max_queued=1))
    world.open("s")
    first = world.say("s", "a", "hello there")
    for index in range(2):
        world.generate(f"p{index}", text("busy"), greedy(20, ignore_eos=True))
        world.step()
    world.turn("s", "b", " on")
    assert world.refusal("b") == (429, "queue_full")
    world.run()
    outcome = world.say("s", "c", " on")
    assert outcome.tokens == alone(text("hello there") + first.tokens + text(" on"), EIGHT)


def test_idle_sessions_that_fill_the_pool_do_not_delay_plain_requests() -> None:
    world = SessionWorld(Shape(num_pages=128, sessions=True, num_rows=16))
    for index in range(200):
        world.open(f"s{index}")
        world.say(f"s{index}", f"t{index}", f"{index:03} is the number of this session")
    assert (world.pool.accounting().available, world.pool.accounting().session_held > 20) == (0, True)
    for index in range(10):
        world.generate(f"p{index}", text("a plain request " * 3), greedy(4, ignore_eos=True))
    before = world.steps
    outcomes = world.run()
    assert all(outcomes[f"p{index}"].finish == "length" for index in range(10))
    assert world.steps - before < 60
    assert not world.events


def test_waiting_turns_do_not_retract_a_running_request() -> None:
    world = SessionWorld(Shape(num_pages=40, sessions=True, num_rows=1))
    for index in range(3):
        world.open(f"s{index}")
        world.say(f"s{index}", f"t{index}", f"{index} is the number of this session!")
    world.generate("runs", text("a plain request"), greedy(120, ignore_eos=True))
    world.step()
    for index in range(3):
        world.turn(f"s{index}", f"u{index}", " on")
    outcomes = world.run()
    assert outcomes["runs"].tokens == alone(text("a plain request"), greedy(120, ignore_eos=True))
    assert not world.events
    assert all(outcomes[f"u{index}"].finish == "length" for index in range(3))


def test_after_an_abort_for_memory_the_session_can_be_closed_or_continued() -> None:
    world = SessionWorld(Shape(sessions=True, num_pages=8))
    world.open("s")
    first = world.say("s", "a", "hello there")
    world.turn("s", "b", " on", greedy(100, ignore_eos=True))
    outcomes = world.run()
    assert [abort.status for abort in outcomes["b"].aborts] == [500]
    outcome = world.say("s", "c", "?", greedy(4))
    assert outcome.tokens == alone(text("hello there") + first.tokens + text("?"), greedy(4))
    assert world.close("s").status == 200
    assert world.pool.accounting().session_held == 0


def test_aborting_a_queued_turn_frees_the_session() -> None:
    world = SessionWorld(Shape(sessions=True, num_rows=1))
    world.open("s")
    world.generate("busy", text("busy"), greedy(20, ignore_eos=True))
    world.step()
    world.turn("s", "a", "hello")
    world.step()
    world.send(AbortReq("a", "client"))
    world.turn("s", "b", "hello")
    assert world.run()["b"].tokens == alone(text("hello"), EIGHT)


def test_expiry_is_by_idle_time_and_a_running_turn_is_activity() -> None:
    world = SessionWorld(Shape(sessions=True, session_timeout=30.0))
    world.open("s")
    world.turn("s", "a", "hello", greedy(100, ignore_eos=True))
    world.run()
    assert world.info("s").state == "warm"  # 100 steps are 100 seconds here
    world.generate("p", text("plain"), greedy(40, ignore_eos=True))
    world.run()
    world.turn("s", "b", "on")
    assert world.refusal("b") == (410, "session_closed")
    assert world.pool.accounting().session_held == 0
    world.generate("q", text("plain"), greedy(40, ignore_eos=True))
    world.run()
    world.turn("s", "c", "on")
    assert world.refusal("c") == (404, "session_not_found")


@pytest.mark.parametrize("cache", [True, False], ids=["radix", "no prefix cache"])
@pytest.mark.parametrize("when", ["idle", "running"])
def test_a_slot_with_an_error_is_recomputed_and_serving_continues(when: str, cache: bool) -> None:
    world = SessionWorld(Shape(sessions=True, cache=cache, memory_check="quarantine"))
    world.open("s")
    first = world.say("s", "a", "hello there, you of the many pages")
    assert isinstance(world.pool.tree_cache, SessionAwareCache)
    (slot,) = world.pool.tree_cache.slots()
    page = slot.pages[0]
    world.turn("s", "b", " and on", greedy(12, ignore_eos=True))
    if when == "running":
        world.step()
        world.step()
    world.allocator.ledger.assign([page], None)
    outcome = world.run()["b"]
    whole = text("hello there, you of the many pages") + first.tokens + text(" and on")
    assert outcome.tokens == alone(whole, greedy(12, ignore_eos=True))
    assert page in world.pool.quarantined
    again = world.say("s", "c", " more")
    assert again.tokens == alone(whole + outcome.tokens + text(" more"), EIGHT)


def test_the_checker_names_the_slot_that_lists_a_page_of_another_owner() -> None:
    world = SessionWorld()
    world.open("s")
    world.say("s", "a", "hello there, you of the many pages")
    assert isinstance(world.pool.tree_cache, SessionAwareCache)
    (slot,) = world.pool.tree_cache.slots()
    slot.pages[0] = world.allocator.free_pages()[0]
    with pytest.raises(InvariantViolation, match="the slot of session s"):
        world.scheduler.on_idle()


def test_recovery_while_the_last_turn_of_a_closed_session_runs_loses_no_page() -> None:
    world = SessionWorld(Shape(sessions=True, memory_check="quarantine"))
    world.open("s")
    first = world.say("s", "a", "hello there, you of the many pages")
    world.turn("s", "b", " and on", greedy(12, ignore_eos=True))
    world.step()
    world.close("s")
    (running,) = world.scheduler.state.running
    world.allocator.ledger.assign(running.pages[-1:], None)
    whole = text("hello there, you of the many pages") + first.tokens + text(" and on")
    assert world.run()["b"].tokens == alone(whole, greedy(12, ignore_eos=True))
    assert world.scheduler.state.metrics.totals["kv_invariant_violations_total"] == 1
    accounting = world.pool.accounting()
    assert (accounting.available + accounting.evictable, accounting.session_held) == (accounting.total, 0)


@pytest.mark.parametrize("seed", range(8))
def test_a_stop_token_that_is_not_committed_leaves_no_kv(seed: int) -> None:
    """If a step has several tokens, the K/V of the stop token may be computed, and may fill the last page."""
    world = SessionWorld(Shape(sessions=True, max_samples=3, page_size=1))
    world.open("s")
    prompt = f"{seed} some words"
    stops = tuple(range(48, 123))
    outcome = world.say("s", "a", prompt, greedy(30, stop_token_ids=stops))
    said = outcome.tokens[:-1] if outcome.finish == "stop" else outcome.tokens
    assert world.info("s").num_tokens == len(prompt) + len(said)
    follow_up = world.say("s", "b", " and on")
    assert follow_up.tokens == alone(text(prompt) + said + text(" and on"), EIGHT)
