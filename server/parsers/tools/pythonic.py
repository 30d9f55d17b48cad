"""Parses tool calls written as a Python list: ``[weather(city="Paris", days=2), clock()]``.

The text is only parsed, never executed.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import Any

from .marked_calls import calls_in_brackets
from .stream_scanner import ParserCoroutine, StreamScanner

MAX_NAME = 100
MAX_CHARACTERS = 100_000
MAX_DEPTH = 64
CLOSES = {")": "(", "]": "[", "}": "{"}


def pythonic_calls(
    scanner: StreamScanner, names: Collection[str], opens: tuple[str, ...], closes: tuple[str, ...], *, bare: bool
) -> ParserCoroutine[None]:
    """Parse an output to its end.

    A list is parsed after one of ``opens`` and, if ``bare``, at the start of the output.
    """
    if bare:
        scanner.mark()
        yield from _list(scanner, names, closes)
        scanner.reject()
    while opens and (yield from scanner.emit_text_until(opens)):
        yield from _list(scanner, names, closes)
        scanner.reject()
    yield from scanner.emit_text_until(())


def _list(scanner: StreamScanner, names: Collection[str], closes: tuple[str, ...]) -> ParserCoroutine[None]:
    """Parse a complete list of calls. Add nothing if the text is not such a list."""
    yield from scanner.skip_spaces()
    if not (yield from scanner.literal("[")):
        return
    if (yield from scanner.skip_spaces()) == "{":  # some models write a list of JSON objects instead
        yield from calls_in_brackets(scanner, names)
        yield from _behind(scanner, closes)
        return
    head, parenthesis = yield from scanner.read_until(("(",), MAX_NAME)
    if not parenthesis or head.strip() not in names:
        return
    rest = yield from _balanced(scanner)
    calls = _parse(f"[{head}({rest}", names) if rest else []
    if not calls:
        return
    scanner.accept()
    for name, arguments in calls:
        scanner.sink.start_call(name)
        scanner.sink.add_arguments(arguments)
        scanner.sink.close_call()
    yield from _behind(scanner, closes)


def _behind(scanner: StreamScanner, closes: tuple[str, ...]) -> ParserCoroutine[None]:
    """If calls were parsed, skip the closing marker and the whitespace around it."""
    if not scanner.accepted:
        return
    yield from scanner.skip_spaces()
    for close in closes:
        yield from scanner.literal(close)
    yield from scanner.skip_spaces()


def _balanced(scanner: StreamScanner) -> ParserCoroutine[str]:
    """Return the text after ``[name(`` up to the bracket that closes the list; "" if that bracket is missing."""
    open_brackets = ["[", "("]
    quote = ""
    read: list[str] = []
    while open_brackets and len(read) < MAX_CHARACTERS and len(open_brackets) < MAX_DEPTH:
        character = yield from scanner.peek()
        if not character:
            return ""
        scanner.seek(scanner.lookahead()[1] + 1)
        read.append(character)
        if quote:
            quote = "" if character == quote and not _escaped(read) else quote
        elif character in "\"'":
            quote = character
        elif character in "([{":
            open_brackets.append(character)
        elif character in ")]}" and open_brackets.pop() != CLOSES[character]:
            return ""
    return "" if open_brackets else "".join(read)


def _escaped(read: list[str]) -> bool:
    """Return True if an odd number of backslashes precedes the last character."""
    count = 0
    while count + 2 <= len(read) and read[-2 - count] == "\\":
        count += 1
    return count % 2 == 1


def _parse(text: str, names: Collection[str]) -> list[tuple[str, str]]:
    """Return (name, arguments as JSON) of each call; [] unless the text consists only of calls of known functions."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return [_call(node, names) for node in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _call(node: ast.expr, names: Collection[str]) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    if name not in names:
        raise ValueError("not a known function")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("not a named argument")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)
