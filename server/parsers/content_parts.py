"""What an answer is made of: text, reasoning and calls of functions, as they come. Knows no API's form and no model's.

Whoever joins the fragments of a kind (of a call: by its number) gets the same, however the answer came in parts.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """What a fragment belongs to."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Fragment:
    """More of an answer. text: never empty, but for a call's first fragment, where it always is.

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


class FragmentSink:
    """Takes what a parser finds and gives out fragments.

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
        self._fragments: list[Fragment] = []

    def take(self) -> list[Fragment]:
        """What is new since the last time."""
        fragments, self._fragments = self._fragments, []
        return fragments

    def text(self, text: str) -> None:
        """Plain text of the answer."""
        if not self._begun and not text.strip():
            self._blank += text
        elif text:
            self._add(Fragment(Kind.TEXT, self._blank + text))
            self._blank = ""
            self._begun = True

    def blank(self, mark: str) -> None:
        """A mark that stands around calls and means nothing by itself."""
        if self._begun:
            self._begun = False
        self._blank += mark

    def reasoning(self, text: str) -> None:
        """A part of the reasoning."""
        if text:
            self._add(Fragment(Kind.REASONING, text))

    def call(self, name: str) -> None:
        """A call begins."""
        self._blank = ""
        self._begun = False
        self._muted = self.num_calls == self._max_calls
        self.call_open = True
        if not self._muted:
            self._add(Fragment(Kind.CALL, "", self.num_calls, name, new_call_id()))
            self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        if text and not self._muted:
            self._add(Fragment(Kind.CALL, text, self.num_calls - 1))

    def close_call(self) -> None:
        """The call is complete."""
        self.call_open = False

    def end(self) -> None:
        """The answer ends: blanks without any call were text."""
        if self._blank and not self.num_calls:
            self._add(Fragment(Kind.TEXT, self._blank))
        self._blank = ""

    def _add(self, fragment: Fragment) -> None:
        self.kind = fragment.kind
        last = self._fragments[-1] if self._fragments else None
        joins = last is not None and (last.kind, last.call) == (fragment.kind, fragment.call)
        if last is not None and joins and fragment.name is None and last.name is None:
            self._fragments[-1] = replace(last, text=last.text + fragment.text)
        else:
            self._fragments.append(fragment)
