"""Whole answers: reasoning, then text and calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.messages import TextItem
from ebbtide.server.parsers.content_parts import Kind
from ebbtide.server.parsers.output_parser import OutputParsers, ParsedDelta, ParserConfig, ReasoningMode
from ebbtide.server.parsers.reasoning import REASONING
from ebbtide.server.parsers.tools.table import FORMATS
from ebbtide.tokenization.vocabulary import sim_vocabulary
from ebbtide.tokenizer_mgr.response_stream import Delta

from ..reading_tool import SCHEMAS, Read, read_with, splits

PIECES = sim_vocabulary().pieces
CALL = '<tool_call>{"name": "clock", "arguments": {"a": "日"}}</tool_call>'


def config(**more: Any) -> ParserConfig:
    return ParserConfig(
        reasoning=REASONING["think"],
        parse_calls=lambda scanner: FORMATS["hermes"].read(scanner, SCHEMAS),
        pieces=PIECES,
        **more,
    )


def by_character(one: ParserConfig, text: str, finish: str = "stop") -> list[ParsedDelta]:
    """The deltas of an answer that arrives byte by byte, as from the simulated model."""
    parsers = OutputParsers(one)
    deltas = []
    for at, character in enumerate(text):
        delta = Delta(0)
        last = at == len(text) - 1
        delta.add(TextItem("r", character, list(character.encode()), at + 1, finish=finish if last else None))
        deltas.append(parsers.parse(delta))
    return deltas


def test_reasoning_then_text_then_a_call() -> None:
    text = f"<think>\nI <tool_call> 👩‍👩‍👧\n</think>\n\nHello {CALL}"
    expected = Read("Hello ", [("clock", '{"a": "日"}')], "tool_calls", "I <tool_call> 👩‍👩‍👧")
    assert read_with(config(), [text]) == expected
    assert read_with(config(), list(text)) == expected


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
    st.sampled_from(ReasoningMode),
)
def test_every_split_is_parsed_like_the_whole(
    split: tuple[str, list[str]], starts_in_reasoning: bool, reasoning_mode: ReasoningMode
) -> None:
    text, parts = split
    one = config(starts_in_reasoning=starts_in_reasoning, reasoning_mode=reasoning_mode)
    whole = read_with(one, [text])
    assert read_with(one, parts) == whole
    if reasoning_mode is ReasoningMode.INLINE and not whole.calls:
        assert whole.text == text


def test_text_without_marks_is_not_parsed() -> None:
    [parsed] = by_character(ParserConfig(), "\n")
    assert (parsed.text_of(Kind.TEXT), parsed.reasoning_tokens) == ("\n", None)


def test_reasoning_tokens_are_counted_to_the_closing_mark() -> None:
    assert by_character(config(), "<think>日</think>yes")[-1].reasoning_tokens == len("<think>日</think>".encode())
    assert by_character(config(starts_in_reasoning=True), "ab</think>yes")[-1].reasoning_tokens == len("ab</think>")
    assert by_character(config(starts_in_reasoning=True), "ab", "length")[-1].reasoning_tokens == 2
    assert by_character(config(), "yes <think>no</think>")[-1].reasoning_tokens == 0


def test_a_delta_without_parts_says_what_its_tokens_belong_to() -> None:
    kinds = [parsed.kind for parsed in by_character(config(), "<think>a\n\nb</think>\nyes")]
    assert kinds[9] is Kind.REASONING, "a line break that is held back"
    assert kinds[-1] is Kind.TEXT
    [held, *_] = by_character(config(starts_in_reasoning=True), "\n\nwhy")
    assert (held.parts, held.kind) == ([], Kind.REASONING)


def test_reasoning_can_be_sent_in_one_piece() -> None:
    deltas = by_character(config(reasoning_mode=ReasoningMode.WHEN_COMPLETE), "<think>abc</think>yes")
    assert [f.text for r in deltas for f in r.parts if f.kind is Kind.REASONING] == ["abc"]
    cut = by_character(config(reasoning_mode=ReasoningMode.WHEN_COMPLETE), "<think>abc", "length")
    assert [f.text for r in cut for f in r.parts] == ["abc"]


def test_reasoning_can_be_omitted_and_still_counts() -> None:
    deltas = by_character(config(reasoning_mode=ReasoningMode.OMITTED), "<think>abc</think>yes")
    assert "".join(f.text for r in deltas for f in r.parts) == "yes"
    assert deltas[-1].reasoning_tokens == len("<think>abc</think>")


def test_choices_are_parsed_independently() -> None:
    parsers = OutputParsers(config())
    parsers.parse(Delta(0, "<think>a"))
    assert parsers.parse(Delta(1, "b")).text_of(Kind.TEXT) == "b"
    assert parsers.parse(Delta(0, "c")).text_of(Kind.REASONING) == "c"


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_call_has_its_id_and_name_once(finish: str) -> None:
    deltas = by_character(config(), CALL + CALL, finish)
    calls = [part for parsed in deltas for part in parsed.parts]
    heads = [part for part in calls if part.name is not None]
    assert [(head.call, head.name, head.text) for head in heads] == [(0, "clock", ""), (1, "clock", "")]
    assert len({head.id for head in heads}) == 2
    assert all(head.id is not None and head.id.startswith("call_") for head in heads)
    assert all(part.id is None for part in calls if part not in heads)
    assert deltas[-1].finish == ("tool_calls" if finish == "stop" else "length")
