"""Which turns a session accepts, their names, and the state of the session afterwards."""

from __future__ import annotations

import pytest

from ebbtide.messages import FinishReq, GenerateReq, ListSessionsReq, SessionTurn, TextParams

from ..session_world import SessionWorld, alone
from ..world import Shape, greedy, text

FOUR = greedy(4, ignore_eos=True)


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld(Shape(sessions=True, max_sessions=3, session_timeout=100.0))


@pytest.fixture
def plain(world: SessionWorld) -> SessionWorld:
    """A world with a plain session "s" of two turns, first "a", then "b"."""
    world.open("s", streaming=False)
    for name in ("a", "b"):
        world.turn("s", name, f"turn {name}.", FOUR, turn=name)
        world.run()
    return world


def said(world: SessionWorld, *names: str) -> list[int]:
    """The context after the named turns in this order."""
    tokens: list[int] = []
    for name in names:
        tokens += text(f"turn {name}.") + world.outcomes[name].tokens
    return tokens


def test_an_open_id_cannot_be_opened_again(world: SessionWorld) -> None:
    world.open("s")
    assert (world.open("s").status, world.open("s").code) == (409, "session_exists")


def test_the_number_of_open_sessions_is_limited(world: SessionWorld) -> None:
    assert [world.open(f"s{index}").status for index in range(4)] == [200, 200, 200, 429]
    world.close("s1")
    assert world.open("s3").status == 200


def test_only_streaming_sessions_need_the_flag() -> None:
    world = SessionWorld(Shape(sessions=False))
    refused = world.open("s")
    assert (refused.status, "--enable-streaming-session" in refused.message) == (400, True)
    assert world.open("s", streaming=False).status == 200


def test_an_unknown_session_is_404_a_closed_one_410_and_closing_is_always_200(world: SessionWorld) -> None:
    assert world.close("s").status == 200
    world.turn("s", "a", "hello")
    assert world.refusal("a") == (404, "session_not_found")
    world.open("s")
    world.close("s")
    world.turn("s", "b", "hello")
    assert world.refusal("b") == (410, "session_closed")
    assert world.close("s").status == 200


def test_a_closed_id_may_be_opened_again(world: SessionWorld) -> None:
    world.open("s")
    world.close("s")
    assert world.open("s").status == 200
    assert world.info("s").num_turns == 0


def test_a_session_is_visible_to_its_owner_only(world: SessionWorld) -> None:
    world.open("s", owner="me")
    world.turn("s", "a", "hello", owner="you")
    assert world.refusal("a") == (404, "session_not_found")
    world.close("s", owner="you")
    assert world.info("s", owner="me").state == "cold"
    assert world.open("s", owner="you").status == 200  # and the reply does not reveal that the id is in use
    world.close("s", owner="me")
    world.turn("s", "b", "hello", owner="")
    assert world.refusal("b") == (404, "session_not_found")


def test_a_turn_name_can_be_used_once(world: SessionWorld) -> None:
    world.open("s")
    world.turn("s", "a", "hello", FOUR, turn="one")
    world.run()
    world.turn("s", "b", "hello", FOUR, turn="one")
    assert world.refusal("b") == (409, "duplicate_turn")


def test_the_name_of_an_aborted_turn_can_be_reused(world: SessionWorld) -> None:
    world.open("s")
    world.turn("s", "a", "hello", FOUR, turn="one")
    world.abort("a")
    world.turn("s", "b", "hello", FOUR, turn="one")
    assert world.run()["b"].finish == "length"


def test_a_turn_must_have_one_choice_and_add_tokens(world: SessionWorld) -> None:
    world.open("s")
    world.send(GenerateReq(("a", "b"), text("hello"), FOUR, session=SessionTurn("s")))
    world.turn("s", "c", "")
    world.receive()
    world.read()
    assert [abort.rid for abort in world.outcomes["a"].aborts + world.outcomes["b"].aborts] == ["a", "b"]
    assert world.refusal("c")[0] == 400


def test_a_continuation_replaces_the_prompt_from_the_second_turn_on(world: SessionWorld) -> None:
    world.open("s")
    world.turn("s", "a", "first", FOUR, continuation=text("never"))
    first = world.run()["a"].tokens
    world.turn("s", "b", "never", FOUR, continuation=text("second"))
    assert world.run()["b"].tokens == alone(text("first") + first + text("second"), FOUR)


def test_messages_allowed_only_in_the_first_turn_are_rejected_with_a_reason_later(world: SessionWorld) -> None:
    world.open("s")
    world.turn("s", "a", "first", FOUR, continuation=[], refusal="only first")
    assert world.run()["a"].tokens
    world.turn("s", "b", "first", FOUR, continuation=[], refusal="only first")
    assert world.refusal("b") == (400, "session_chat_unsupported")
    assert world.outcomes["b"].aborts[0].message == "only first"
    assert world.info("s").num_turns == 1


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_the_head_of_a_continuation_is_not_repeated(world: SessionWorld, kept: int) -> None:
    world.open("s")
    world.turn("s", "a", "first", FOUR)
    first = world.run()["a"].tokens
    head = first[-kept:] if kept else []
    world.turn("s", "b", "", FOUR, continuation=head + text("\n!") + text("more"), head=kept + 2)
    assert world.run()["b"].prompt_tokens == len("first") + 4 + len("\n!more")


@pytest.mark.parametrize(
    "fields", [{"parent": "a"}, {"offset": 0}, {"replace": True}, {"drop_previous_output": True}], ids=str
)
def test_a_streaming_session_is_append_only(world: SessionWorld, fields: dict[str, object]) -> None:
    world.open("s")
    world.turn("s", "a", "hello", FOUR, turn="a")
    world.run()
    world.turn("s", "b", "hello", FOUR, **fields)
    assert world.refusal("b")[0] == 400


def test_a_plain_session_continues_from_its_latest_turn(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR)
    assert plain.run()["c"].tokens == alone(said(plain, "a", "b") + text("turn c."), FOUR)


def test_a_plain_session_branches_from_any_turn_and_keeps_the_others(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, parent="a", turn="c")
    assert plain.run()["c"].tokens == alone(said(plain, "a") + text("turn c."), FOUR)
    plain.turn("s", "d", "turn d.", FOUR, parent="b", turn="d")
    assert plain.run()["d"].tokens == alone(said(plain, "a", "b") + text("turn d."), FOUR)
    plain.turn("s", "e", "turn e.", FOUR, parent="c")
    assert plain.run()["e"].tokens == alone(said(plain, "a", "c") + text("turn e."), FOUR)


@pytest.mark.parametrize("offset", [0, 3, 11, 20])
def test_an_offset_truncates_the_previous_context(plain: SessionWorld, offset: int) -> None:
    plain.turn("s", "c", "turn c.", FOUR, parent="b", offset=offset, turn="c")
    context = said(plain, "a", "b")[:offset] + text("turn c.")
    assert plain.run()["c"].tokens == alone(context, FOUR)
    plain.turn("s", "d", "turn d.", FOUR, parent="c")
    assert plain.run()["d"].tokens == alone(context + plain.outcomes["c"].tokens + text("turn d."), FOUR)


def test_an_offset_beyond_the_context_is_rejected(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, offset=100)
    assert plain.refusal("c")[0] == 400


def test_the_previous_output_can_be_dropped(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, drop_previous_output=True)
    assert plain.run()["c"].tokens == alone(said(plain, "a") + text("turn b.") + text("turn c."), FOUR)


def test_replacing_removes_the_descendants_of_the_parent_at_the_commit(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, parent="a", replace=True, turn="c")
    plain.abort("c")
    plain.run()
    assert plain.info("s").num_tokens == len(said(plain, "a", "b"))
    plain.turn("s", "d", "turn d.", FOUR, parent="a", replace=True, turn="d")
    assert plain.run()["d"].tokens == alone(said(plain, "a") + text("turn d."), FOUR)
    plain.turn("s", "e", "turn e.", FOUR, parent="b")
    assert plain.refusal("e") == (404, "turn_not_found")


def test_the_name_of_a_replacing_turn_is_taken(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, parent="a", replace=True, turn="c")
    plain.run()
    plain.turn("s", "d", "turn d.", FOUR, parent="a", turn="c")
    assert plain.refusal("d") == (409, "duplicate_turn")
    plain.turn("s", "e", "turn e.", FOUR, parent="a", turn="b")
    assert plain.run()["e"].tokens, "the name of a turn that was cut off is free again"


def test_replacing_without_a_parent_starts_over(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, replace=True)
    assert plain.run()["c"].tokens == alone(text("turn c."), FOUR)
    assert plain.info("s").num_tokens == len("turn c.") + 4


def test_a_branch_from_a_running_turn_is_rejected_and_from_another_is_not(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, turn="c")
    plain.turn("s", "d", "turn d.", FOUR, parent="c")
    plain.turn("s", "e", "turn e.", FOUR)
    plain.turn("s", "f", "turn f.", FOUR, parent="a", turn="f")
    assert plain.refusal("d") == (409, "session_busy")
    assert plain.refusal("e") == (409, "session_busy")
    assert plain.run()["f"].tokens == alone(said(plain, "a") + text("turn f."), FOUR)


def test_a_late_stop_string_truncates_a_plain_turn(plain: SessionWorld) -> None:
    plain.send(FinishReq("b", 2))
    plain.turn("s", "c", "turn c.", FOUR)
    assert plain.run()["c"].tokens == alone(said(plain, "a", "b")[:-2] + text("turn c."), FOUR)


def test_a_plain_session_has_a_token_limit() -> None:
    world = SessionWorld(Shape(sessions=True, context_length=16))
    world.open("s", streaming=False)
    codes = []
    for index in range(100):
        world.turn("s", f"t{index}", "twelve chars", FOUR, replace=False, offset=0 if index else -1)
        world.run()
        codes += [abort.code for abort in world.outcomes[f"t{index}"].aborts]
    assert set(codes) == {"session_full"}
    assert world.info("s").num_tokens <= 64 * 16


def test_sessions_are_listed_by_owner(world: SessionWorld) -> None:
    world.open("s")
    world.open("t", owner="me")
    world.open("u", owner="me", streaming=False)
    infos = world.ask(ListSessionsReq, "", owner="me").sessions
    assert [(info.session_id, info.streaming) for info in infos] == [("t", True), ("u", False)]


def test_a_session_can_have_its_own_timeout(world: SessionWorld) -> None:
    world.open("s", timeout_s=5.0)
    world.open("t")
    world.generate("p", text("plain"), greedy(20, ignore_eos=True))
    world.run()
    world.turn("s", "a", "hello")
    assert world.refusal("a") == (410, "session_closed")
    assert world.info("t").timeout_s == 100.0


@pytest.mark.parametrize(("closing", "kept"), [(True, 1), (False, 0)], ids=["it closes answers", "it does not"])
def test_a_stop_token_stays_only_if_it_ends_answers_in_the_chat_template(
    world: SessionWorld, closing: bool, kept: int
) -> None:
    world.open("s")
    said_alone = alone(text("hello"), greedy(30, ignore_eos=True))
    stop = said_alone[3]
    count = said_alone.index(stop)
    sampling = greedy(30, ignore_eos=True, stop_token_ids=(stop,))
    fields = {"continuation": [stop, *text("!more")] if closing else text("!more"), "head": 1}
    world.turn("s", "a", "hello", sampling, **fields)
    assert world.run()["a"].tokens == said_alone[: count + 1]
    assert world.info("s").num_tokens == len("hello") + count + kept
    world.turn("s", "b", "", FOUR, **fields)
    whole = text("hello") + said_alone[:count] + ([stop] if closing else []) + text("!more")
    assert world.run()["b"].tokens == alone(whole, FOUR)


def test_a_shown_stop_token_stays() -> None:
    world = SessionWorld()
    world.open("s")
    said_alone = alone(text("hello"), greedy(30, ignore_eos=True))
    count = said_alone.index(said_alone[3])
    sampling = greedy(30, ignore_eos=True, stop_token_ids=(said_alone[3],))
    shown = TextParams(include_stop=True, shown_stop_ids=sampling.stop_token_ids)
    turn = GenerateReq(("a",), text("hello"), sampling, shown, session=SessionTurn("s"))
    world.send(turn)
    world.run()
    assert world.info("s").num_tokens == len("hello") + count + 1


def test_offset_and_drop_previous_output_are_mutually_exclusive(plain: SessionWorld) -> None:
    plain.turn("s", "c", "turn c.", FOUR, parent="b", offset=3, drop_previous_output=True)
    assert plain.refusal("c")[0] == 400


def test_sessions_of_one_owner_are_limited_in_number_and_timeout() -> None:
    world = SessionWorld(Shape(sessions=True, max_sessions=3, max_per_owner=2))
    assert world.open("s", owner="me", timeout_s=1e300).status == 400
    assert [world.open(f"s{index}", owner="me").status for index in range(3)] == [200, 200, 429]
    assert world.open("s", owner="you").status == 200


def test_a_full_session_can_start_over() -> None:
    world = SessionWorld(Shape(sessions=True, context_length=16))
    world.open("s", streaming=False)
    for index in range(100):
        world.turn("s", f"t{index}", "twelve chars", FOUR, offset=0 if index else -1)
        world.run()
    world.turn("s", "full", "twelve chars", FOUR, offset=0)
    assert world.refusal("full") == (429, "session_full")
    world.turn("s", "anew", "twelve chars", FOUR, replace=True)
    assert world.run()["anew"].finish == "length"
    assert world.info("s").num_tokens == len("twelve chars") + 4
