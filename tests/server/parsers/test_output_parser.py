"""Whole answers: reasoning, then text and calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.messages import TextItem
from ebbtide.server.parsers.content_parts import Kind
from ebbtide.server.parsers.output_parser import Readers, Reading, ReadingPlan, Reasoning
from ebbtide.server.parsers.reasoning import REASONING
from ebbtide.server.parsers.tools.table import FORMATS
from ebbtide.tokenization.vocabulary import sim_vocabulary
from ebbtide.tokenizer_mgr.response_stream import Delta

from ..reading_tool import SCHEMAS, Read, read_plan, splits

PIECES = sim_vocabulary().pieces
CALL = '<tool_call>{"name": "clock", "arguments": {"a": "日"}}</tool_call>'


def plan(**more: object) -> ReadingPlan:
    return ReadingPlan(
        reasoning=REASONING["think"],
        read_calls=lambda scan: FORMATS["hermes"].read(scan, SCHEMAS),
        pieces=PIECES,
        **more,
    )


def by_character(one: ReadingPlan, text: str, finish: str = "stop") -> list[Reading]:
    """The answer byte by byte of its text, as the simulated model makes it."""
    readers = Readers(one)
    readings = []
    for at, character in enumerate(text):
        delta = Delta(0)
        last = at == len(text) - 1
        delta.add(TextItem("r", character, list(character.encode()), at + 1, finish=finish if last else None))
        readings.append(readers.read(delta))
    return readings


def test_reasoning_then_text_then_a_call() -> None:
    text = f"<think>\nI <tool_call> 👩‍👩‍👧\n</think>\n\nHello {CALL}"
    expected = Read("Hello ", [("clock", '{"a": "日"}')], "tool_calls", "I <tool_call> 👩‍👩‍👧")
    assert read_plan(plan(), [text]) == expected
    assert read_plan(plan(), list(text)) == expected


@given(
    splits(
        st.lists(
            st.sampled_from(
                ["<think>", "</think>", "\n", " ", "a", "日", "e\u0301", "👩‍👩‍👧", CALL, "<tool_call>", "</th", "<"]
            ),
            max_size=12,
        ).map("".join)
    ),
    st.booleans(),
    st.sampled_from(Reasoning),
)
def test_any_split_reads_like_the_whole(split: tuple[str, list[str]], opened: bool, shows: Reasoning) -> None:
    text, parts = split
    one = plan(opened=opened, shows=shows)
    whole = read_plan(one, [text])
    assert read_plan(one, parts) == whole
    if shows is Reasoning.IN_TEXT and not whole.calls:
        assert whole.text == text


def test_without_marks_nothing_is_read_into_a_text() -> None:
    [reading] = by_character(ReadingPlan(), "\n")
    assert (reading.joined(Kind.TEXT), reading.reasoning_tokens) == ("\n", None)


def test_reasoning_tokens_are_counted_to_the_closing_mark() -> None:
    assert by_character(plan(), "<think>日</think>yes")[-1].reasoning_tokens == len("<think>日</think>".encode())
    assert by_character(plan(opened=True), "ab</think>yes")[-1].reasoning_tokens == len("ab</think>")
    assert by_character(plan(opened=True), "ab", "length")[-1].reasoning_tokens == 2
    assert by_character(plan(), "yes <think>no</think>")[-1].reasoning_tokens == 0


def test_a_reading_without_fragments_says_what_its_tokens_belong_to() -> None:
    kinds = [reading.kind for reading in by_character(plan(), "<think>a\n\nb</think>\nyes")]
    assert kinds[9] is Kind.REASONING, "a line break that is held back"
    assert kinds[-1] is Kind.TEXT
    [held, *_] = by_character(plan(opened=True), "\n\nwhy")
    assert (held.fragments, held.kind) == ([], Kind.REASONING)


def test_reasoning_can_come_at_once() -> None:
    readings = by_character(plan(shows=Reasoning.AT_ONCE), "<think>abc</think>yes")
    assert [f.text for r in readings for f in r.fragments if f.kind is Kind.REASONING] == ["abc"]
    cut = by_character(plan(shows=Reasoning.AT_ONCE), "<think>abc", "length")
    assert [f.text for r in cut for f in r.fragments] == ["abc"]


def test_reasoning_can_be_left_out_and_still_counts() -> None:
    readings = by_character(plan(shows=Reasoning.LEFT_OUT), "<think>abc</think>yes")
    assert "".join(f.text for r in readings for f in r.fragments) == "yes"
    assert readings[-1].reasoning_tokens == len("<think>abc</think>")


def test_choices_are_read_apart() -> None:
    readers = Readers(plan())
    readers.read(Delta(0, "<think>a"))
    assert readers.read(Delta(1, "b")).joined(Kind.TEXT) == "b"
    assert readers.read(Delta(0, "c")).joined(Kind.REASONING) == "c"


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_call_has_its_id_and_name_once(finish: str) -> None:
    readings = by_character(plan(), CALL + CALL, finish)
    calls = [fragment for reading in readings for fragment in reading.fragments]
    heads = [fragment for fragment in calls if fragment.name is not None]
    assert [(head.call, head.name, head.text) for head in heads] == [(0, "clock", ""), (1, "clock", "")]
    assert len({head.id for head in heads}) == 2
    assert all(head.id is not None and head.id.startswith("call_") for head in heads)
    assert all(fragment.id is None for fragment in calls if fragment not in heads)
    assert readings[-1].finish == ("tool_calls" if finish == "stop" else "length")
