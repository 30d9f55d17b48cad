"""Separates reasoning from the rest of an output. A new reasoning format needs only a new entry in ``REASONING``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .tools.stream_scanner import ParserCoroutine, StreamScanner


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The markers of reasoning blocks in one model family. Reasoning can occur only at the start of an output.

    Line breaks next to a marker belong to the marker.

    Attributes:
        opens: start marker.
        closes: end marker.
        always: True if the output starts with reasoning even without the start marker.
    """

    opens: str
    closes: str
    always: bool = False


# The table is in the order of detection.
REASONING: dict[str, ReasoningFormat] = {
    "think": ReasoningFormat("<think>", "</think>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "cohere": ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>"),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "granite": ReasoningFormat("Here is my thought process:", "Here is my response:"),
    "deepseek_r1": ReasoningFormat("<think>", "</think>", always=True),
}


def detect(template: str) -> str | None:
    """Return the name of the reasoning format whose end marker a chat template contains; None if there is none."""
    return next((name for name, form in REASONING.items() if form.closes in template), None)


def prompt_opens_reasoning(form: ReasoningFormat, prompt: str) -> bool:
    """Return True if the output for this prompt starts inside a reasoning block."""
    return form.always or prompt.rstrip().endswith(form.opens)


def read_reasoning(
    scanner: StreamScanner, form: ReasoningFormat, *, starts_in_reasoning: bool
) -> ParserCoroutine[None]:
    """Parse the reasoning, if the output has any. The next parser reads the text after it."""
    scanner.mark()
    yield from scanner.skip_spaces()
    if not (yield from scanner.literal(form.opens)):
        scanner.reject()
        if not starts_in_reasoning:
            return
    scanner.accept()
    yield from _line_breaks(scanner)
    waiting = stop = ""
    while not stop:
        chunk, stop = yield from scanner.read_chunk((form.closes,))
        if not chunk and not stop:
            scanner.sink.add_reasoning(waiting)  # the output ended before the end marker
            return
        text = waiting + chunk
        sure = text.rstrip("\n")
        waiting = text[len(sure) :]
        scanner.sink.add_reasoning(sure)
    yield from _line_breaks(scanner)


def keep_reasoning(
    scanner: StreamScanner, form: ReasoningFormat, *, starts_in_reasoning: bool
) -> ParserCoroutine[None]:
    """Add the reasoning, including its markers, as text, so that no tool calls are parsed inside it."""
    scanner.mark()
    spaces = ""
    while (yield from scanner.literal("\n")):
        spaces += "\n"
    if not (yield from scanner.literal(form.opens)):
        scanner.reject()
        if not starts_in_reasoning:
            return
    else:
        scanner.accept()
        scanner.sink.add_text(spaces + form.opens)
    while True:
        text, stop = yield from scanner.read_chunk((form.closes,))
        scanner.sink.add_text(text + stop)
        if stop or not text:
            return


def _line_breaks(scanner: StreamScanner) -> ParserCoroutine[None]:
    while (yield from scanner.literal("\n")):
        pass


class ReasoningTokenCounter:
    """Counts the reasoning tokens of an output, including the end marker.

    pieces: bytes of every token id.
    """

    def __init__(self, form: ReasoningFormat, pieces: Sequence[bytes], *, starts_in_reasoning: bool) -> None:
        self.num_tokens = 0
        self._opens = form.opens.encode()
        self._closes = form.closes.encode()
        self._pieces = pieces
        self._inside: bool | None = True if starts_in_reasoning else None  # None: undecided
        self._tail = b""
        self._undecided = 0

    def add(self, tokens: Iterable[int]) -> None:
        """Count the next tokens."""
        for token in tokens:
            if self._inside is False:
                return
            piece = self._pieces[token] if token < len(self._pieces) else b""
            if self._inside is None:
                self._look(piece)
            else:
                self._count(piece)

    def _look(self, piece: bytes) -> None:
        self._tail = (self._tail + piece).lstrip()
        self._undecided += 1
        if self._tail.startswith(self._opens):
            self._inside = True
            self.num_tokens = self._undecided
        elif not self._opens.startswith(self._tail):
            self._inside = False

    def _count(self, piece: bytes) -> None:
        self.num_tokens += 1
        self._tail += piece
        if self._closes in self._tail:
            self._inside = False
        self._tail = self._tail[-len(self._closes) :]
