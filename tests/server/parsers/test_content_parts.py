"""Fragments of an answer, and the white space around calls."""

from __future__ import annotations

from ebbtide.server.parsers.content_parts import ContentPart, ContentPartSink, Kind, new_call_id


def test_fragments_of_one_kind_are_joined_until_they_are_taken() -> None:
    sink = ContentPartSink()
    sink.add_text("a")
    sink.add_text("b")
    sink.add_reasoning("c")
    assert sink.take_parts() == [ContentPart(Kind.TEXT, "ab"), ContentPart(Kind.REASONING, "c")]
    assert sink.take_parts() == []
    assert sink.kind is Kind.REASONING


def test_white_space_waits_for_text() -> None:
    sink = ContentPartSink()
    sink.add_text(" \n")
    assert sink.take_parts() == []
    sink.add_text("a ")
    assert sink.take_parts() == [ContentPart(Kind.TEXT, " \na ")]


def test_white_space_around_a_call_belongs_to_the_format() -> None:
    sink = ContentPartSink()
    sink.add_text("\n")
    sink.start_call("f")
    sink.add_arguments("{")
    sink.add_arguments("}")
    sink.close_call()
    sink.add_text("\n")
    sink.finish()
    head, arguments = sink.take_parts()
    assert (head.kind, head.text, head.call, head.name) == (Kind.CALL, "", 0, "f")
    assert arguments == ContentPart(Kind.CALL, "{}", 0)


def test_white_space_alone_is_text() -> None:
    sink = ContentPartSink()
    sink.add_text(" ")
    sink.add_blank("<calls>")
    sink.finish()
    assert sink.take_parts() == [ContentPart(Kind.TEXT, " <calls>")]


def test_calls_beyond_the_limit_are_left_out() -> None:
    sink = ContentPartSink(max_calls=1)
    for name in ("f", "g"):
        sink.start_call(name)
        sink.add_arguments("{}")
        sink.close_call()
    assert [part.name for part in sink.take_parts()] == ["f", None]
    assert sink.num_calls == 1


def test_ids_of_calls_are_unique_to_their_last_characters() -> None:
    assert len({new_call_id()[-9:] for _ in range(1000)}) == 1000
