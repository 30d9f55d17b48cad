"""Reading an answer that has not come yet: parsers are generators that pause where the text ends for now.

A parser decides by the text alone, never by where it paused, so every split of an answer is read alike.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from ..content_parts import ContentPartSink

T = TypeVar("T")
ParserCoroutine = Generator[None, None, T]  # pauses for more text; returns a T
SPACES = " \t\r\n"


class StreamScanner:
    """A place in the growing text of one answer, and the sink for what is found there.

    ``mark`` sets a point to which ``reject`` returns, to read what follows as plain text; ``accept`` forgets it.
    """

    def __init__(self, sink: ContentPartSink) -> None:
        self.sink = sink
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._marker = ""
        self._ended = False

    def feed(self, text: str) -> None:
        """Append what has come."""
        settled = self._at if self._mark is None else self._mark
        self._text = self._text[settled:] + text
        self._at -= settled
        self._mark = None if self._mark is None else 0

    def end_input(self) -> None:
        """Nothing more will come."""
        self._ended = True

    @property
    def accepted(self) -> bool:
        """Whether nothing is in doubt: no mark is set."""
        return self._mark is None

    @property
    def ended(self) -> bool:
        """Whether the text at hand is all that there will be."""
        return self._ended

    def mark(self, marker: str = "") -> None:
        """Remember this place. marker: what stood in front of it and turns into text with a ``reject``."""
        self._mark = self._at
        self._marker = marker

    def accept(self) -> None:
        """What was read since ``mark`` is what it looked like."""
        self._mark = None

    def reject(self) -> None:
        """It is not: back to the mark; the marker was plain text. Without a mark nothing happens."""
        if self._mark is not None:
            self._at = self._mark
            self._mark = None
            self.sink.add_text(self._marker)

    def peek(self) -> ParserCoroutine[str]:
        """The next character; "" at the end of the answer."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def skip_spaces(self) -> ParserCoroutine[str]:
        """Skip white space; the character behind it, or "" at the end."""
        while (character := (yield from self.peek())) and character in SPACES:
            self._at += 1
        return character

    def literal(self, expected: str) -> ParserCoroutine[bool]:
        """Whether ``expected`` comes next; if so it is read, else nothing is."""
        while True:
            ahead = self._text[self._at : self._at + len(expected)]
            if ahead == expected:
                self._at += len(expected)
                return True
            if self._ended or not expected.startswith(ahead):
                return False
            yield

    def read_chunk(self, stops: tuple[str, ...]) -> ParserCoroutine[tuple[str, str]]:
        """(text, "") as far as it is certain, or (text, stop) up to the first of ``stops``, which is read too.

        ("", "") only at the end of the answer. No stop may begin inside another one.
        """
        while True:
            found = [(index, stop) for stop in stops if (index := self._text.find(stop, self._at)) >= 0]
            if found:
                index, stop = min(found)
                text, self._at = self._text[self._at : index], index + len(stop)
                return text, stop
            sure = len(self._text) - (0 if self._ended else partial_match_len(self._text[self._at :], stops))
            if sure > self._at or self._ended:
                text, self._at = self._text[self._at : sure], sure
                return text, ""
            yield

    def read_until(self, stops: tuple[str, ...], limit: int) -> ParserCoroutine[tuple[str, str]]:
        """All the text up to the first of ``stops``, and that stop, which is read too.

        The stop is "" when the answer ends first, or when more than ``limit`` characters come before one.
        """
        parts: list[str] = []
        size = 0
        while size <= limit:
            text, stop = yield from self.read_chunk(stops)
            parts.append(text)
            size += len(text)
            if size <= limit and (stop or not text):
                return "".join(parts), stop
        return "", ""

    def lookahead(self) -> tuple[str, int]:
        """The text at hand and the place in it, for a reader of its own kind, which then calls ``seek``."""
        return self._text, self._at

    def seek(self, at: int) -> None:
        """Continue at this place of the text at hand."""
        self._at = at

    def wait_for_text(self) -> ParserCoroutine[bool]:
        """Pause for more text; False when the answer has ended."""
        if self._ended:
            return False
        yield
        return True

    def emit_text_until(self, markers: tuple[str, ...]) -> ParserCoroutine[str]:
        """Hand out text up to the first of ``markers``, and mark the place behind it; "" at the end of the answer."""
        while True:
            text, marker = yield from self.read_chunk(markers)
            self.sink.add_text(text)
            if marker:
                self.mark(marker)
            if marker or not text:
                return marker


def partial_match_len(text: str, stops: tuple[str, ...]) -> int:
    """The length of the longest end of ``text`` that may become one of ``stops``."""
    longest = max(map(len, stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(stop.startswith(tail) for stop in stops):
            return size
    return 0
