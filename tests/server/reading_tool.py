"""Parses a scripted answer in pieces, for the tests of the formats."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from ebbtide.server.parsers.content_parts import Kind
from ebbtide.server.parsers.output_parser import OutputParsers, ParserConfig, join_calls
from ebbtide.server.parsers.tools.table import FORMATS
from ebbtide.tokenizer_mgr.response_stream import Delta

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "clock": {},
}


@dataclass(frozen=True)
class Read:
    """The parsed answer."""

    text: str
    calls: list[tuple[str, str]]
    finish: str | None
    reasoning: str = ""


def read(name: str, pieces: list[str], *, finish: str = "stop", max_calls: int | None = None) -> Read:
    """Parse an answer that arrives in these pieces, in the format ``name``."""
    return read_with(
        ParserConfig(parse_calls=lambda scanner: FORMATS[name].read(scanner, SCHEMAS), max_calls=max_calls),
        pieces,
        finish,
    )


def read_with(config: ParserConfig, pieces: list[str], finish: str = "stop") -> Read:
    """Parse the answer according to ``config``."""
    parsers = OutputParsers(config)
    parts = []
    for piece in pieces[:-1]:
        parts += parsers.parse(Delta(0, piece)).parts
    last = parsers.parse(Delta(0, pieces[-1], finish=finish))
    parts += last.parts

    def joined(kind: Kind) -> str:
        return "".join(part.text for part in parts if part.kind is kind)

    calls = [(call.name, call.arguments) for call in join_calls(parts)]
    return Read(joined(Kind.TEXT), calls, last.finish, joined(Kind.REASONING))


def in_every_split(name: str, text: str, **options: Any) -> Read:
    """Parse the answer whole, by characters, and split in two at every position; the results must be equal."""
    whole = read(name, [text], **options)
    assert read(name, list(text) or [""], **options) == whole
    for at in range(1, len(text)):
        assert read(name, [text[:at], text[at:]], **options) == whole, f"cut at {at}"
    return whole


def splits(texts: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, list[str]]]:
    """A text, and the same text in random pieces."""
    return texts.flatmap(
        lambda text: st.lists(st.integers(0, len(text)), max_size=8).map(lambda cuts: (text, _cut(text, sorted(cuts))))
    )


def _cut(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *cuts, len(text)]
    return [text[start:end] for start, end in pairwise(edges)]
