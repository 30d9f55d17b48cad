"""Calls that stand behind a mark, as JSON objects with a name and arguments, or as a name followed by the arguments.

One reader for every family that writes so; what differs between families is a ``MarkedCallFormat``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from .json_text import JsonText
from .stream_scanner import ParserCoroutine, StreamScanner, partial_match_len

MAX_HEAD = 300  # characters between a mark and the arguments; longer ones are no call
NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
HARMLESS = (
    "type",
    "id",
    "index",
    "tool_call_id",
)  # other keys that a call may have; with any further one an object is no call


@dataclass(frozen=True, slots=True)
class MarkedCallFormat:
    """How a family marks calls. opens: each begins a call, or a list of calls. skips: stand in front and mean nothing.

    closes: may follow a call, in any order. head: matches what stands in front of arguments that follow a name; of its
    groups, the one that took part is the name. bare: an object at the very beginning of the answer is a call as well.
    separator: between objects. listed: the family writes a list behind a mark. key: what it calls the arguments.
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
    """Read an answer to its end. names: the functions that can be called; anything else is text."""
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
    """``[call, call, …]``; what is no call is text from there on."""
    if (yield from scanner.literal("[")):
        yield from calls_in_brackets(scanner, names)


def calls_in_brackets(scanner: StreamScanner, names: Collection[str]) -> ParserCoroutine[None]:
    """The same behind the opening bracket."""
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
    """``{"name": …, "arguments": {…}}``, keys in any order, further ones ignored. Whether a call was announced."""
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
    """The arguments as they come. Whether the call was announced: with the second character that can belong to them.

    After that nothing is refused any more: what is no JSON goes on as it is, to the end of the object or to ``close``.
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
    """Up to where the text at hand is certain to come before ``close``."""
    text, at = scanner.lookahead()
    stop = text.find(close, at)
    if stop >= 0:
        return stop
    return len(text) - (0 if scanner.ended else partial_match_len(text[at:], (close,)))


class _Call:
    """One call as an object, member by member."""

    def __init__(self, scanner: StreamScanner, names: Collection[str], close: str) -> None:
        self.announced = False
        self._scanner = scanner
        self._names = names
        self._close = close
        self._name = ""
        self._arguments = ""

    def member(self) -> ParserCoroutine[bool]:
        """Read a key and its value; False when that is none, or when it cannot belong to a call."""
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
        """The object has ended: announce the call unless it was. False when it has no name."""
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
    """The JSON object in ``text``: itself, or the one that a string contains, or an empty one for null; "" if none."""
    if text == "null":
        return "{}"
    inner = json.loads(text) if text.startswith('"') else text
    machine = JsonText()
    end = machine.consume(inner, 0, len(inner))
    whole = machine.done and not inner[end:].strip()
    return machine.take_accepted() if whole and inner.lstrip().startswith("{") else ""


def json_value(scanner: StreamScanner) -> ParserCoroutine[str | None]:
    """A complete JSON value's text; None when it is none, or when the answer ends in it."""
    machine = JsonText()
    while not machine.done:
        text, at = scanner.lookahead()
        end = machine.consume(text, at, len(text))
        scanner.seek(end)
        if machine.bad or (end == len(text) and not machine.done and not (yield from scanner.wait_for_text())):
            return None
    return machine.take_accepted()


def _behind_mark(scanner: StreamScanner, names: Collection[str], form: MarkedCallFormat) -> ParserCoroutine[None]:
    """What follows a mark: nothing is announced when it is no call."""
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
    """Marks behind a call, and brackets of which small models write too many."""
    while scanner.accepted and (yield from scanner.skip_spaces()):
        if (yield from scanner.literal("}")) or (yield from scanner.literal("]")):
            continue
        for close in form.closes:
            if (yield from scanner.literal(close)):
                break
        else:
            return
