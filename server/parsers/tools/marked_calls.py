"""Calls that stand behind a mark, as JSON objects with a name and arguments, or as a name followed by the arguments.

One reader for every family that writes so; what differs between families is a ``CallForm``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from .json_text import JsonText
from .stream_scanner import Scan, Steps, held

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
class CallForm:
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


def marked_calls(scan: Scan, names: Collection[str], form: CallForm) -> Steps[None]:
    """Read an answer to its end. names: the functions that can be called; anything else is text."""
    if form.bare:
        scan.mark()
        if (yield from scan.spaces()) in ("[", "{"):
            yield from _behind_mark(scan, names, form)
        scan.reject()
    while marker := (yield from scan.text_until((*form.opens, *form.skips))):
        if marker in form.skips:
            scan.accept()
            scan.sink.blank(marker)
        else:
            yield from _behind_mark(scan, names, form)
            scan.reject()


def call_list(scan: Scan, names: Collection[str]) -> Steps[None]:
    """``[call, call, …]``; what is no call is text from there on."""
    if (yield from scan.literal("[")):
        yield from calls_in_brackets(scan, names)


def calls_in_brackets(scan: Scan, names: Collection[str]) -> Steps[None]:
    """The same behind the opening bracket."""
    more = True
    while more:
        yield from scan.spaces()
        if not (yield from call_object(scan, names, "")):
            return
        yield from scan.spaces()
        scan.mark()
        more = yield from scan.literal(",")
    if not (yield from scan.literal("]")):
        scan.reject()
    scan.accept()


def call_object(scan: Scan, names: Collection[str], close: str) -> Steps[bool]:
    """``{"name": …, "arguments": {…}}``, keys in any order, further ones ignored. Whether a call was announced."""
    call = _Call(scan, names, close)
    if not (yield from scan.literal("{")):
        return False
    more = True
    while more:
        yield from scan.spaces()
        if not (yield from call.member()):
            return call.announced
        yield from scan.spaces()
        more = yield from scan.literal(",")
    if not (yield from scan.literal("}")):
        return call.announced
    return call.complete()


def arguments_object(scan: Scan, name: str, close: str) -> Steps[bool]:
    """The arguments as they come. Whether the call was announced: with the second character that can belong to them.

    After that nothing is refused any more: what is no JSON goes on as it is, to the end of the object or to ``close``.
    """
    machine = JsonText()
    announced = False
    waiting = ""
    while not machine.done:
        text, at = scan.ahead()
        limit = _limit(scan, close) if machine.loose and close else len(text)
        end = machine.take(text, at, limit)
        scan.go(end)
        waiting += machine.pop()
        if not announced and (machine.done or len(waiting.strip()) > 1):
            announced = True
            scan.accept()
            scan.sink.call(name)
        if announced:
            scan.sink.arguments(waiting)
            waiting = ""
        if machine.bad and not announced:
            return False
        if machine.bad:
            machine.loosen()
        elif end == limit and text.startswith(close, end) and machine.loose and close:
            break
        elif end == limit and not machine.done and not (yield from scan.wait()):
            return announced
    scan.sink.close_call()
    return True


def _limit(scan: Scan, close: str) -> int:
    """Up to where the text at hand is certain to come before ``close``."""
    text, at = scan.ahead()
    stop = text.find(close, at)
    if stop >= 0:
        return stop
    return len(text) - (0 if scan.ended else held(text[at:], (close,)))


class _Call:
    """One call as an object, member by member."""

    def __init__(self, scan: Scan, names: Collection[str], close: str) -> None:
        self.announced = False
        self._scan = scan
        self._names = names
        self._close = close
        self._name = ""
        self._arguments = ""

    def member(self) -> Steps[bool]:
        """Read a key and its value; False when that is none, or when it cannot belong to a call."""
        if (yield from self._scan.peek()) != '"':
            return False
        key = json.loads((yield from json_value(self._scan)) or "null")
        yield from self._scan.spaces()
        if key is None or not (yield from self._scan.literal(":")):
            return False
        first = yield from self._scan.spaces()
        if key in ARGUMENTS and first == "{" and self._name and not self.announced:
            self.announced = yield from arguments_object(self._scan, self._name, self._close)
            return self.announced and not self._scan.sink.call_open
        text = yield from json_value(self._scan)
        return text is not None and self._takes(key, text)

    def complete(self) -> bool:
        """The object has ended: announce the call unless it was. False when it has no name."""
        if not self._name:
            return False
        if not self.announced:
            self._scan.accept()
            self._scan.sink.call(self._name)
            self._scan.sink.arguments(self._arguments or "{}")
            self._scan.sink.close_call()
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
    end = machine.take(inner, 0, len(inner))
    whole = machine.done and not inner[end:].strip()
    return machine.pop() if whole and inner.lstrip().startswith("{") else ""


def json_value(scan: Scan) -> Steps[str | None]:
    """A complete JSON value's text; None when it is none, or when the answer ends in it."""
    machine = JsonText()
    while not machine.done:
        text, at = scan.ahead()
        end = machine.take(text, at, len(text))
        scan.go(end)
        if machine.bad or (end == len(text) and not machine.done and not (yield from scan.wait())):
            return None
    return machine.pop()


def _behind_mark(scan: Scan, names: Collection[str], form: CallForm) -> Steps[None]:
    """What follows a mark: nothing is announced when it is no call."""
    first = yield from scan.spaces()
    if first == "[":
        yield from call_list(scan, names)
    elif first == "{":
        yield from _objects(scan, names, form)
    elif form.head is not None:
        yield from _named(scan, names, form.head, form.closes[0] if form.closes else "")
    yield from _closing(scan, form)


def _objects(scan: Scan, names: Collection[str], form: CallForm) -> Steps[None]:
    while (yield from call_object(scan, names, form.closes[0] if form.closes else "")):
        yield from scan.spaces()
        scan.mark()
        if not form.separator or not (yield from scan.literal(form.separator)):
            scan.accept()
            return
        yield from scan.spaces()


def _named(scan: Scan, names: Collection[str], head: re.Pattern[str], close: str) -> Steps[None]:
    text, brace = yield from scan.upto(("{",), MAX_HEAD)
    match = head.fullmatch(text)
    name: str = next(filter(None, match.groups()), "") if match is not None else ""
    if brace and name in names:
        scan.go(scan.ahead()[1] - 1)
        yield from arguments_object(scan, name, close)


def _closing(scan: Scan, form: CallForm) -> Steps[None]:
    """Marks behind a call, and brackets of which small models write too many."""
    while scan.accepted and (yield from scan.spaces()):
        if (yield from scan.literal("}")) or (yield from scan.literal("]")):
            continue
        for close in form.closes:
            if (yield from scan.literal(close)):
                break
        else:
            return
