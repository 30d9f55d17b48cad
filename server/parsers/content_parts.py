"""What an answer is made of: text, reasoning and calls of functions, as they come. Knows no API's form and no model's.

Whoever joins the parts of a kind (of a call: by its number) gets the same, however the answer came in parts.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """What a part belongs to."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class ContentPart:
    """More of an answer. text: never empty, but for a call's first part, where it always is.

    call: the call's number, from 0; its further text is a part of the arguments. name, id: with the first one only.
    """

    kind: Kind
    text: str
    call: int | None = None
    name: str | None = None
    id: str | None = None


def new_call_id() -> str:
    """An id that no other call has. Its last nine characters serve templates that want just so many."""
    return f"call_{secrets.token_hex(12)}"


class ContentPartSink:
    """Takes what a parser finds and gives out parts.

    White space (and ``blank`` marks) around a call belong to the format, so they wait until it is clear that plain
    text goes with them. max_calls: further calls are left out; None is no limit. kind: what was found last, or begins.
    """

    def __init__(self, max_calls: int | None = None, kind: Kind = Kind.TEXT) -> None:
        self.kind = kind
        self.num_calls = 0
        self.call_open = False
        self._max_calls = max_calls
        self._muted = False
        self._blank = ""
        self._begun = False  # whether text has come since the last call
        self._parts: list[ContentPart] = []

    def take_parts(self) -> list[ContentPart]:
        """What is new since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def add_text(self, text: str) -> None:
        """Plain text of the answer."""
        if not self._begun and not text.strip():
            self._blank += text
        elif text:
            self._add(ContentPart(Kind.TEXT, self._blank + text))
            self._blank = ""
            self._begun = True

    def add_blank(self, mark: str) -> None:
        """A mark that stands around calls and means nothing by itself."""
        if self._begun:
            self._begun = False
        self._blank += mark

    def add_reasoning(self, text: str) -> None:
        """A part of the reasoning."""
        if text:
            self._add(ContentPart(Kind.REASONING, text))

    def start_call(self, name: str) -> None:
        """A call begins."""
        self._blank = ""
        self._begun = False
        self._muted = self.num_calls == self._max_calls
        self.call_open = True
        if not self._muted:
            self._add(ContentPart(Kind.CALL, "", self.num_calls, name, new_call_id()))
            self.num_calls += 1

    def add_arguments(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        if text and not self._muted:
            self._add(ContentPart(Kind.CALL, text, self.num_calls - 1))

    def close_call(self) -> None:
        """The call is complete."""
        self.call_open = False

    def finish(self) -> None:
        """The answer ends: blanks without any call were text."""
        if self._blank and not self.num_calls:
            self._add(ContentPart(Kind.TEXT, self._blank))
        self._blank = ""

    def _add(self, part: ContentPart) -> None:
        self.kind = part.kind
        last = self._parts[-1] if self._parts else None
        joins = last is not None and (last.kind, last.call) == (part.kind, part.call)
        if last is not None and joins and part.name is None and last.name is None:
            self._parts[-1] = replace(last, text=last.text + part.text)
        else:
            self._parts.append(part)
