"""Fragments of an answer, and the white space around calls."""

from __future__ import annotations

from ebbtide.server.parsers.content_parts import Fragment, FragmentSink, Kind, new_call_id


def test_fragments_of_one_kind_are_joined_until_they_are_taken() -> None:
    sink = FragmentSink()
    sink.text("a")
    sink.text("b")
    sink.reasoning("c")
    assert sink.take() == [Fragment(Kind.TEXT, "ab"), Fragment(Kind.REASONING, "c")]
    assert sink.take() == []
    assert sink.kind is Kind.REASONING


def test_white_space_waits_for_text() -> None:
    sink = FragmentSink()
    sink.text(" \n")
    assert sink.take() == []
    sink.text("a ")
    assert sink.take() == [Fragment(Kind.TEXT, " \na ")]


def test_white_space_around_a_call_belongs_to_the_format() -> None:
    sink = FragmentSink()
    sink.text("\n")
    sink.call("f")
    sink.arguments("{")
    sink.arguments("}")
    sink.close_call()
    sink.text("\n")
    sink.end()
    head, arguments = sink.take()
    assert (head.kind, head.text, head.call, head.name) == (Kind.CALL, "", 0, "f")
    assert arguments == Fragment(Kind.CALL, "{}", 0)


def test_white_space_alone_is_text() -> None:
    sink = FragmentSink()
    sink.text(" ")
    sink.blank("<calls>")
    sink.end()
    assert sink.take() == [Fragment(Kind.TEXT, " <calls>")]


def test_calls_beyond_the_limit_are_left_out() -> None:
    sink = FragmentSink(max_calls=1)
    for name in ("f", "g"):
        sink.call(name)
        sink.arguments("{}")
        sink.close_call()
    assert [fragment.name for fragment in sink.take()] == ["f", None]
    assert sink.num_calls == 1


def test_ids_of_calls_are_unique_to_their_last_characters() -> None:
    assert len({new_call_id()[-9:] for _ in range(1000)}) == 1000
