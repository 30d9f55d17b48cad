"""Incremental parsing: parsers are generators that pause at the end of the text received so far.

The decisions of a parser depend only on the text and not on where the parser paused, so the result does not depend on
how the text is divided.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from ..content_parts import ContentPartSink

T = TypeVar("T")
ParserCoroutine = Generator[None, None, T]  # a generator that pauses for more text and returns a T
SPACES = " \t\r\n"


class StreamScanner:
    """A position in the text of one output, which arrives in parts, and the sink for the findings of the parsers.

    ``mark`` saves a position. ``reject`` returns to this position, so that the text after it is handled as plain text.
    ``accept`` discards the saved position.
    """

    def __init__(self, sink: ContentPartSink) -> None:
        self.sink = sink
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._marker = ""
        self._ended = False

    def feed(self, text: str) -> None:
        """Append new text to the available text."""
        settled = self._at if self._mark is None else self._mark
        self._text = self._text[settled:] + text
        self._at -= settled
        self._mark = None if self._mark is None else 0

    def end_input(self) -> None:
        """Record that no more text follows."""
        self._ended = True

    @property
    def accepted(self) -> bool:
        """True if no mark is set."""
        return self._mark is None

    @property
    def ended(self) -> bool:
        """True if no more text follows."""
        return self._ended

    def mark(self, marker: str = "") -> None:
        """Save this position.

        marker: the text before this position, which ``reject`` adds as plain text.
        """
        self._mark = self._at
        self._marker = marker

    def accept(self) -> None:
        """Discard the mark: the text since then was parsed successfully."""
        self._mark = None

    def reject(self) -> None:
        """Return to the mark and add the marker as plain text. Does nothing without a mark."""
        if self._mark is not None:
            self._at = self._mark
            self._mark = None
            self.sink.add_text(self._marker)

    def peek(self) -> ParserCoroutine[str]:
        """Return the next character; "" at the end of the output."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def skip_spaces(self) -> ParserCoroutine[str]:
        """Skip whitespace. Return the following character, or "" at the end of the output."""
        while (character := (yield from self.peek())) and character in SPACES:
            self._at += 1
        return character

    def literal(self, expected: str) -> ParserCoroutine[bool]:
        """If ``expected`` comes next, consume it and return True. Otherwise return False and consume nothing."""
        while True:
            ahead = self._text[self._at : self._at + len(expected)]
            if ahead == expected:
                self._at += len(expected)
                return True
            if self._ended or not expected.startswith(ahead):
                return False
            yield

    def read_chunk(self, stops: tuple[str, ...]) -> ParserCoroutine[tuple[str, str]]:
        """Return (text, "") with the text available so far, or (text, stop) with the first of ``stops``.

        The stop text is consumed. Returns ("", "") only at the end of the output. No stop text may start inside
        another stop text.
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
        """Return all text up to the first of ``stops``, and the stop text, which is consumed.

        If the output ends before that, returns the text up to its end and "". If more than ``limit`` characters precede
        the stop text, returns ("", "").
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
        """Return the available text and the current position in it.

        A parser that reads ahead must then call ``seek``.
        """
        return self._text, self._at

    def seek(self, at: int) -> None:
        """Continue at this position of the available text."""
        self._at = at

    def wait_for_text(self) -> ParserCoroutine[bool]:
        """Pause for more text. Returns False if the output has ended."""
        if self._ended:
            return False
        yield
        return True

    def emit_text_until(self, markers: tuple[str, ...]) -> ParserCoroutine[str]:
        """Add the text up to the first of ``markers``, and set a mark after this marker.

        Returns the marker; "" at the end of the output.
        """
        while True:
            text, marker = yield from self.read_chunk(markers)
            self.sink.add_text(text)
            if marker:
                self.mark(marker)
            if marker or not text:
                return marker


def partial_match_len(text: str, stops: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of one of ``stops``."""
    longest = max(map(len, stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        tail = text[-size:]
        if any(stop.startswith(tail) for stop in stops):
            return size
    return 0
