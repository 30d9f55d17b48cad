"""Calls written as a Python list: ``[weather(city="Paris", days=2), clock()]``. Nothing of it is ever run."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection
from typing import Any

from .marked_calls import calls_in_brackets
from .stream_scanner import Scan, Steps

MAX_NAME = 100
MAX_CHARACTERS = 100_000
MAX_DEPTH = 64
CLOSES = {")": "(", "]": "[", "}": "{"}


def pythonic_calls(
    scan: Scan, names: Collection[str], opens: tuple[str, ...], closes: tuple[str, ...], *, bare: bool
) -> Steps[None]:
    """Read an answer to its end. A list counts behind one of ``opens``, and with ``bare`` at the very beginning."""
    if bare:
        scan.mark()
        yield from _list(scan, names, closes)
        scan.reject()
    while opens and (yield from scan.text_until(opens)):
        yield from _list(scan, names, closes)
        scan.reject()
    yield from scan.text_until(())


def _list(scan: Scan, names: Collection[str], closes: tuple[str, ...]) -> Steps[None]:
    """The calls of one list, all at once when it is complete; none if it is something else."""
    yield from scan.spaces()
    if not (yield from scan.literal("[")):
        return
    if (yield from scan.spaces()) == "{":  # some were trained on JSON too
        yield from calls_in_brackets(scan, names)
        yield from _behind(scan, closes)
        return
    head, parenthesis = yield from scan.upto(("(",), MAX_NAME)
    if not parenthesis or head.strip() not in names:
        return
    rest = yield from _balanced(scan)
    calls = _parse(f"[{head}({rest}", names) if rest else []
    if not calls:
        return
    scan.accept()
    for name, arguments in calls:
        scan.sink.call(name)
        scan.sink.arguments(arguments)
        scan.sink.close_call()
    yield from _behind(scan, closes)


def _behind(scan: Scan, closes: tuple[str, ...]) -> Steps[None]:
    """The closing mark and white space around it, if calls were read."""
    if not scan.accepted:
        return
    yield from scan.spaces()
    for close in closes:
        yield from scan.literal(close)
    yield from scan.spaces()


def _balanced(scan: Scan) -> Steps[str]:
    """The text behind ``[name(`` up to the bracket that closes the list; "" when it does not come."""
    open_brackets = ["[", "("]
    quote = ""
    read: list[str] = []
    while open_brackets and len(read) < MAX_CHARACTERS and len(open_brackets) < MAX_DEPTH:
        character = yield from scan.peek()
        if not character:
            return ""
        scan.go(scan.ahead()[1] + 1)
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
    """Whether an odd number of backslashes stands in front of the last character."""
    count = 0
    while count + 2 <= len(read) and read[-2 - count] == "\\":
        count += 1
    return count % 2 == 1


def _parse(text: str, names: Collection[str]) -> list[tuple[str, str]]:
    """(name, arguments as JSON) of every call; [] if the text is anything but calls of known functions."""
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
