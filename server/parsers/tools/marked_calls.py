"""Parses tool calls after a marker: JSON objects with name and arguments, or a name followed by the arguments.

One parser handles all such formats; a ``MarkedCallFormat`` describes the differences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from .json_text import JsonText
from .stream_scanner import ParserCoroutine, StreamScanner, partial_match_len

MAX_HEAD = 300  # maximum number of characters between a marker and the arguments of a call
NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
# Further keys that a call may have. An object with any other key is not a call.
HARMLESS = ("type", "id", "index", "tool_call_id")


@dataclass(frozen=True, slots=True)
class MarkedCallFormat:
    """The syntax of tool calls in one model family.

    Attributes:
        opens: markers that start a call or a list of calls.
        closes: markers that may follow a call, in any order.
        skips: markers that may precede a call and are ignored.
        head: pattern of the text between a marker and the arguments, in which a group matches the function name; None
            if calls are objects.
        bare: True if an object at the start of the output is also a call.
        separator: text between two objects.
        listed: True if calls are written as a JSON list after a marker.
        key: key of the arguments in an object.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()
    head: re.Pattern[str] | None = None
    bare: bool = False
    separator: str = ";"
    listed: bool = False
    key: str = "arguments"


def marked_calls(scanner: StreamScanner, names: Collection[str], form: MarkedCallFormat) -> ParserCoroutine[None]:
    """Parse an output to its end.

    names: functions that may be called; calls of other functions are text.
    """
    if form.bare:
        scanner.mark()
        if (yield from scanner.skip_spaces()) in ("[", "{"):
            yield from _behind_mark(scanner, names, form)
        scanner.reject()
    while marker := (yield from scanner.emit_text_until((*form.opens, *form.skips))):
        if marker in form.skips:
            scanner.accept()
            scanner.sink.add_blank(marker)
        else:
            yield from _behind_mark(scanner, names, form)
            scanner.reject()


def call_list(scanner: StreamScanner, names: Collection[str]) -> ParserCoroutine[None]:
    """Parse ``[call, call, …]``. The text from the first invalid call onwards is plain text."""
    if (yield from scanner.literal("[")):
        yield from calls_in_brackets(scanner, names)


def calls_in_brackets(scanner: StreamScanner, names: Collection[str]) -> ParserCoroutine[None]:
    """Parse a list of calls after its opening bracket."""
    more = True
    while more:
        yield from scanner.skip_spaces()
        if not (yield from call_object(scanner, names, "")):
            return
        yield from scanner.skip_spaces()
        scanner.mark()
        more = yield from scanner.literal(",")
    if not (yield from scanner.literal("]")):
        scanner.reject()
    scanner.accept()


def call_object(scanner: StreamScanner, names: Collection[str], close: str) -> ParserCoroutine[bool]:
    """Parse ``{"name": …, "arguments": {…}}``, with the keys in any order. Return True if a call was started."""
    call = _Call(scanner, names, close)
    if not (yield from scanner.literal("{")):
        return False
    more = True
    while more:
        yield from scanner.skip_spaces()
        if not (yield from call.member()):
            return call.announced
        yield from scanner.skip_spaces()
        more = yield from scanner.literal(",")
    if not (yield from scanner.literal("}")):
        return call.announced
    return call.complete()


def arguments_object(scanner: StreamScanner, name: str, close: str) -> ParserCoroutine[bool]:
    """Parse arguments while they arrive. Return True if the call was started, which happens at the second character.

    After that, nothing is rejected: invalid JSON is added to the arguments, up to the end of the object or to
    ``close``.
    """
    machine = JsonText()
    announced = False
    waiting = ""
    while not machine.done:
        text, at = scanner.lookahead()
        limit = _limit(scanner, close) if machine.loose and close else len(text)
        end = machine.consume(text, at, limit)
        scanner.seek(end)
        waiting += machine.take_accepted()
        if not announced and (machine.done or len(waiting.strip()) > 1):
            announced = True
            scanner.accept()
            scanner.sink.start_call(name)
        if announced:
            scanner.sink.add_arguments(waiting)
            waiting = ""
        if machine.bad and not announced:
            return False
        if machine.bad:
            machine.ignore_errors()
        elif end == limit and text.startswith(close, end) and machine.loose and close:
            break
        elif end == limit and not machine.done and not (yield from scanner.wait_for_text()):
            return announced
    scanner.sink.close_call()
    return True


def _limit(scanner: StreamScanner, close: str) -> int:
    """Return the index up to which the available text certainly does not belong to ``close``."""
    text, at = scanner.lookahead()
    stop = text.find(close, at)
    if stop >= 0:
        return stop
    return len(text) - (0 if scanner.ended else partial_match_len(text[at:], (close,)))


class _Call:
    """A JSON object that describes a call, parsed member by member.

    Attributes:
        announced: True if the call was started.
    """

    def __init__(self, scanner: StreamScanner, names: Collection[str], close: str) -> None:
        self.announced = False
        self._scanner = scanner
        self._names = names
        self._close = close
        self._name = ""
        self._arguments = ""

    def member(self) -> ParserCoroutine[bool]:
        """Parse a key and its value. Return False if they are invalid or cannot belong to a call."""
        if (yield from self._scanner.peek()) != '"':
            return False
        key = json.loads((yield from json_value(self._scanner)) or "null")
        yield from self._scanner.skip_spaces()
        if key is None or not (yield from self._scanner.literal(":")):
            return False
        first = yield from self._scanner.skip_spaces()
        if key in ARGUMENTS and first == "{" and self._name and not self.announced:
            self.announced = yield from arguments_object(self._scanner, self._name, self._close)
            return self.announced and not self._scanner.sink.call_open
        text = yield from json_value(self._scanner)
        return text is not None and self._takes(key, text)

    def complete(self) -> bool:
        """Handle the end of the object: start the call if that has not happened yet. Return False without a name."""
        if not self._name:
            return False
        if not self.announced:
            self._scanner.accept()
            self._scanner.sink.start_call(self._name)
            self._scanner.sink.add_arguments(self._arguments or "{}")
            self._scanner.sink.close_call()
        return True

    def _takes(self, key: str, text: str) -> bool:
        if key in NAMES and not self.announced:
            name = json.loads(text) if text.startswith('"') else ""
            self._name = name if name in self._names else ""
            return bool(self._name)
        if key in ARGUMENTS and not self.announced:
            self._arguments = _as_object(text)
            return bool(self._arguments)
        return self.announced or key in HARMLESS


def _as_object(text: str) -> str:
    """Return the JSON object in ``text``, which may be inside a JSON string; {} for null, "" for any other value."""
    if text == "null":
        return "{}"
    inner = json.loads(text) if text.startswith('"') else text
    machine = JsonText()
    end = machine.consume(inner, 0, len(inner))
    whole = machine.done and not inner[end:].strip()
    return machine.take_accepted() if whole and inner.lstrip().startswith("{") else ""


def json_value(scanner: StreamScanner) -> ParserCoroutine[str | None]:
    """Return the text of a complete JSON value; None if the value is invalid or the output ends inside it."""
    machine = JsonText()
    while not machine.done:
        text, at = scanner.lookahead()
        end = machine.consume(text, at, len(text))
        scanner.seek(end)
        if machine.bad or (end == len(text) and not machine.done and not (yield from scanner.wait_for_text())):
            return None
    return machine.take_accepted()


def _behind_mark(scanner: StreamScanner, names: Collection[str], form: MarkedCallFormat) -> ParserCoroutine[None]:
    """Parse the text after a marker. Start no call if the text is not a call."""
    first = yield from scanner.skip_spaces()
    if first == "[":
        yield from call_list(scanner, names)
    elif first == "{":
        yield from _objects(scanner, names, form)
    elif form.head is not None:
        yield from _named(scanner, names, form.head, form.closes[0] if form.closes else "")
    yield from _closing(scanner, form)


def _objects(scanner: StreamScanner, names: Collection[str], form: MarkedCallFormat) -> ParserCoroutine[None]:
    while (yield from call_object(scanner, names, form.closes[0] if form.closes else "")):
        yield from scanner.skip_spaces()
        scanner.mark()
        if not form.separator or not (yield from scanner.literal(form.separator)):
            scanner.accept()
            return
        yield from scanner.skip_spaces()


def _named(scanner: StreamScanner, names: Collection[str], head: re.Pattern[str], close: str) -> ParserCoroutine[None]:
    text, brace = yield from scanner.read_until(("{",), MAX_HEAD)
    match = head.fullmatch(text)
    name: str = next(filter(None, match.groups()), "") if match is not None else ""
    if brace and name in names:
        scanner.seek(scanner.lookahead()[1] - 1)
        yield from arguments_object(scanner, name, close)


def _closing(scanner: StreamScanner, form: MarkedCallFormat) -> ParserCoroutine[None]:
    """Skip markers after a call, and surplus closing brackets, which small models may write."""
    while scanner.accepted and (yield from scanner.skip_spaces()):
        if (yield from scanner.literal("}")) or (yield from scanner.literal("]")):
            continue
        for close in form.closes:
            if (yield from scanner.literal(close)):
                break
        else:
            return
