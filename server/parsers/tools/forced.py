"""Parsers for outputs that a grammar forces to be tool calls, written as JSON without markers."""

from __future__ import annotations

from collections.abc import Collection

from .marked_calls import arguments_object, call_list
from .stream_scanner import ParserCoroutine, StreamScanner


def only_calls(scanner: StreamScanner, names: Collection[str]) -> ParserCoroutine[None]:
    """Parse ``[{"name": …, "arguments": {…}}, …]``. Any other output is text."""
    yield from scanner.skip_spaces()
    scanner.mark()
    yield from call_list(scanner, names)
    scanner.reject()


def one_call(scanner: StreamScanner, name: str) -> ParserCoroutine[None]:
    """Parse the arguments of one call of the function ``name``. Any other output is text."""
    yield from scanner.skip_spaces()
    scanner.mark()
    if (yield from scanner.peek()) == "{":
        yield from arguments_object(scanner, name, "")
    scanner.reject()
