"""ParsedDelta a text that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ebbtide.server.parsers.content_parts import ContentPartSink
from ebbtide.server.parsers.tools.stream_scanner import ParserCoroutine, StreamScanner, partial_match_len


def run(read: Callable[[StreamScanner], ParserCoroutine[Any]], parts: list[str]) -> tuple[Any, str]:
    """(the result of ``read``, the text that it emitted) for a text that arrives in these parts."""
    scanner = StreamScanner(ContentPartSink())
    steps = read(scanner)
    for part in [*parts, None]:
        if part is None:
            scanner.end_input()
        else:
            scanner.feed(part)
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, "".join(part.text for part in scanner.sink.take_parts())
    raise AssertionError("it waits for more after the end")


@pytest.mark.parametrize("parts", [["ab<x>c"], list("ab<x>c"), ["ab<", "x>c"]])
def test_text_is_handed_out_up_to_a_marker(parts: list[str]) -> None:
    assert run(lambda scanner: scanner.emit_text_until(("<x>", "<yy>")), parts) == ("<x>", "ab")
    assert run(lambda scanner: scanner.emit_text_until(("<yy>",)), parts) == ("", "ab<x>c")


@pytest.mark.parametrize("parts", [["ab<x>c"], list("ab<x>c")])
def test_rejected_text_is_read_again_as_text(parts: list[str]) -> None:
    def read(scanner: StreamScanner) -> ParserCoroutine[str]:
        yield from scanner.emit_text_until(("<x>",))
        yield from scanner.literal("c")
        scanner.reject()
        return (yield from scanner.emit_text_until(("<x>",)))

    assert run(read, parts) == ("", "ab<x>c")


@pytest.mark.parametrize("parts", [["abcd"], list("abcd")])
def test_a_limit_applies_to_the_text_and_not_to_its_parts(parts: list[str]) -> None:
    assert run(lambda scanner: scanner.read_until(("d",), 3), parts)[0] == ("abc", "d")
    assert run(lambda scanner: scanner.read_until(("d",), 2), parts)[0] == ("", "")
    assert run(lambda scanner: scanner.read_until(("e",), 4), parts)[0] == ("abcd", "")


@pytest.mark.parametrize(("text", "count"), [("ab<", 1), ("ab<x", 2), ("ab<x>", 0), ("<<", 1), ("", 0), ("<xy", 0)])
def test_text_that_may_become_a_marker_is_held_back(text: str, count: int) -> None:
    assert partial_match_len(text, ("<x>",)) == count
