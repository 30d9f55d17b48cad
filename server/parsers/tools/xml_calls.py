"""Parses tool calls written as XML-like elements: the function name, then one element per argument with its value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .stream_scanner import ParserCoroutine, StreamScanner

MAX_HEAD = 300  # maximum number of characters of a function name or an argument name, including surrounding whitespace
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True)
class XmlCallFormat:
    """The markers of a format.

    A call is ``opens NAME name_closes (key NAME key_closes value_opens VALUE value_closes)* ends``.

    Attributes:
        skips: markers that may precede a call and are ignored.
        closes: markers that may follow a call and are ignored.
    """

    opens: str
    name_closes: str
    key: str
    key_closes: str
    value_closes: str
    ends: str
    value_opens: str = ""
    skips: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()


def xml_calls(
    scanner: StreamScanner, schemas: Mapping[str, Mapping[str, Any]], form: XmlCallFormat
) -> ParserCoroutine[None]:
    """Parse an output to its end.

    schemas: function name → JSON schema of the arguments, to detect arguments that are strings.
    """
    while marker := (yield from scanner.emit_text_until((form.opens, *form.skips))):
        if marker in form.skips:
            scanner.accept()
            scanner.sink.add_blank(marker)
            continue
        name, stop = yield from _name(scanner, form)
        if not stop or name not in schemas:
            scanner.reject()
            continue
        scanner.accept()
        scanner.sink.start_call(name)
        if (yield from _arguments(scanner, schemas[name], form, stop)):
            scanner.sink.close_call()
            yield from _closing(scanner, form)


def _name(scanner: StreamScanner, form: XmlCallFormat) -> ParserCoroutine[tuple[str, str]]:
    """Return the function name and the marker after it; the marker is "" if the text is not a call."""
    text, stop = yield from scanner.read_until((form.key, form.ends), MAX_HEAD)
    name = text.strip()
    if not name.endswith(form.name_closes):
        return "", ""
    return name.removesuffix(form.name_closes), stop


def _arguments(
    scanner: StreamScanner, schema: Mapping[str, Any], form: XmlCallFormat, stop: str
) -> ParserCoroutine[bool]:
    """Add the arguments as a JSON object. Return False if the output ends inside them."""
    scanner.sink.add_arguments("{")
    separator = ""
    while stop == form.key:
        key, found = yield from scanner.read_until((form.key_closes,), MAX_HEAD)
        if not found:
            return False
        if form.value_opens:
            yield from scanner.skip_spaces()
            yield from scanner.literal(form.value_opens)
        scanner.sink.add_arguments(f"{separator}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        separator = ", "
        if not (yield from _value(scanner, form, _types(schema, key.strip()))):
            return False
        stop = yield from _to_next(scanner, form)
    scanner.sink.add_arguments("}")
    return stop == form.ends


def _value(scanner: StreamScanner, form: XmlCallFormat, types: set[str]) -> ParserCoroutine[bool]:
    """Add a value as JSON.

    Strings are streamed; other values are added when they are complete. Returns False if the output ends inside the
    value.
    """
    as_text = types == {"string"}
    yield from scanner.literal("\n")
    if as_text:
        scanner.sink.add_arguments('"')
    parts: list[str] = []
    line_break = ""  # a final line break belongs to the following marker
    stop = ""
    while not stop:
        text, stop = yield from scanner.read_chunk((form.value_closes,))
        if not text and not stop:
            return False
        text = line_break + text
        line_break = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if as_text:
            scanner.sink.add_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            parts.append(text)
    scanner.sink.add_arguments('"' if as_text else _as_json("".join(parts), types))
    return True


def _to_next(scanner: StreamScanner, form: XmlCallFormat) -> ParserCoroutine[str]:
    """Skip the text up to and including the next argument marker or the end of the call.

    Returns "" if the output contains neither.
    """
    while True:
        text, stop = yield from scanner.read_chunk((form.key, form.ends))
        if stop or not text:
            return stop


def _closing(scanner: StreamScanner, form: XmlCallFormat) -> ParserCoroutine[None]:
    while (yield from scanner.skip_spaces()):
        for close in form.closes:
            if (yield from scanner.literal(close)):
                break
        else:
            return


def _types(schema: Mapping[str, Any], key: str) -> set[str]:
    """Return the JSON types that the schema of an argument allows directly; an empty set stands for any type."""
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, dict) else None
    if not isinstance(described, dict):
        return set()
    options = described.get("anyOf") or described.get("oneOf")
    described = [option for option in options if isinstance(option, dict)] if isinstance(options, list) else [described]
    named = [option.get("type") for option in described]
    types = {entry for name in named for entry in (name if isinstance(name, list) else [name])}
    return set() if None in types else {str(entry) for entry in types}


def _as_json(text: str, types: set[str]) -> str:
    """Return ``text`` as JSON: unchanged if it is JSON, converted if it is a Python constant, else as a string."""
    value = PYTHON_WORDS.get(text.strip(), text.strip())
    if types == {"string", "null"} and value != "null":
        return json.dumps(text, ensure_ascii=False)
    try:
        json.loads(value, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _no_number(text)
