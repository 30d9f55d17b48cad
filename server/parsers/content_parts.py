"""The parts of an output: text, reasoning and tool calls. The module does not depend on APIs or models.

However the output is divided into deltas, the concatenated parts of one kind (for calls: of one call) are the same.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from enum import Enum


class Kind(Enum):
    """The kind of content in a part."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of an output.

    Attributes:
        text: the text, the reasoning or the arguments of a call; "" only in the first part of a call.
        call: index of the call in the output, starting at 0; None if the part belongs to no call.
        name: function name; None except in the first part of a call.
        id: id of the call; None except in the first part of a call.
    """

    kind: Kind
    text: str
    call: int | None = None
    name: str | None = None
    id: str | None = None


def new_call_id() -> str:
    """Return a unique call id. Its last nine characters are unique, too, for templates that require this length."""
    return f"call_{secrets.token_hex(12)}"


class ContentPartSink:
    """Collects the findings of a parser as content parts.

    Whitespace and separator markers around calls belong to the format, not to the text. They are therefore held back
    until plain text follows.

    Attributes:
        kind: kind of the latest part; until there is one, the kind that the first part is expected to have.
        num_calls: number of calls so far, at most ``max_calls`` (None for no limit); further calls are dropped.
        call_open: True if the latest call is not complete.
    """

    def __init__(self, max_calls: int | None = None, kind: Kind = Kind.TEXT) -> None:
        self.kind = kind
        self.num_calls = 0
        self.call_open = False
        self._max_calls = max_calls
        self._muted = False
        self._blank = ""
        self._begun = False  # True if text has followed the last call
        self._parts: list[ContentPart] = []

    def take_parts(self) -> list[ContentPart]:
        """Return the parts added since the previous call of this method."""
        parts, self._parts = self._parts, []
        return parts

    def add_text(self, text: str) -> None:
        """Add plain text."""
        if not self._begun and not text.strip():
            self._blank += text
        elif text:
            self._add(ContentPart(Kind.TEXT, self._blank + text))
            self._blank = ""
            self._begun = True

    def add_blank(self, mark: str) -> None:
        """Add a separator marker. It becomes text only if plain text follows."""
        if self._begun:
            self._begun = False
        self._blank += mark

    def add_reasoning(self, text: str) -> None:
        """Add reasoning text."""
        if text:
            self._add(ContentPart(Kind.REASONING, text))

    def start_call(self, name: str) -> None:
        """Start a call of the function ``name``."""
        self._blank = ""
        self._begun = False
        self._muted = self.num_calls == self._max_calls
        self.call_open = True
        if not self._muted:
            self._add(ContentPart(Kind.CALL, "", self.num_calls, name, new_call_id()))
            self.num_calls += 1

    def add_arguments(self, text: str) -> None:
        """Append ``text`` to the arguments of the latest call."""
        if text and not self._muted:
            self._add(ContentPart(Kind.CALL, text, self.num_calls - 1))

    def close_call(self) -> None:
        """Mark the latest call as complete."""
        self.call_open = False

    def finish(self) -> None:
        """End the output. If it contains no call, add the held-back whitespace as text."""
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
