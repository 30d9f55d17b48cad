"""Answers that a grammar forced to be calls: no family's marks, only JSON."""

from __future__ import annotations

from collections.abc import Collection

from .marked_calls import arguments_object, call_list
from .stream_scanner import ParserCoroutine, StreamScanner


def only_calls(scanner: StreamScanner, names: Collection[str]) -> ParserCoroutine[None]:
    """``[{"name": …, "arguments": {…}}, …]``. What else there is stays text."""
    yield from scanner.skip_spaces()
    scanner.mark()
    yield from call_list(scanner, names)
    scanner.reject()


def one_call(scanner: StreamScanner, name: str) -> ParserCoroutine[None]:
    """The arguments of a call of ``name`` and nothing else. What else there is stays text."""
    yield from scanner.skip_spaces()
    scanner.mark()
    if (yield from scanner.peek()) == "{":
        yield from arguments_object(scanner, name, "")
    scanner.reject()
