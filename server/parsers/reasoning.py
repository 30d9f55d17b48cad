"""Telling an answer's reasoning from the answer. A further family is a line in the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .tools.stream_scanner import Scan, Steps


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """A family's marks. Line breaks next to them belong to them. Reasoning is the first thing in an answer, or is not.

    always: the answer begins with reasoning even without ``opens``.
    """

    opens: str
    closes: str
    always: bool = False


# In the order of detection.
REASONING: dict[str, ReasoningForm] = {
    "think": ReasoningForm("<think>", "</think>"),
    "mistral": ReasoningForm("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningForm("<seed:think>", "</seed:think>"),
    "cohere": ReasoningForm("<|START_THINKING|>", "<|END_THINKING|>"),
    "kimi": ReasoningForm("◁think▷", "◁/think▷"),
    "granite": ReasoningForm("Here is my thought process:", "Here is my response:"),
    "deepseek_r1": ReasoningForm("<think>", "</think>", always=True),
}


def detect(template: str) -> str | None:
    """The family whose marks a chat template knows; None for a model that does not reason."""
    return next((name for name, form in REASONING.items() if form.closes in template), None)


def opened_by(form: ReasoningForm, prompt: str) -> bool:
    """Whether an answer to a prompt that ends like this begins within the reasoning."""
    return form.always or prompt.rstrip().endswith(form.opens)


def read_reasoning(scan: Scan, form: ReasoningForm, *, opened: bool) -> Steps[None]:
    """Read the reasoning, if there is any; what comes behind it is left to the next reader."""
    scan.mark()
    yield from scan.spaces()
    if not (yield from scan.literal(form.opens)):
        scan.reject()
        if not opened:
            return
    scan.accept()
    yield from _line_breaks(scan)
    waiting = stop = ""
    while not stop:
        chunk, stop = yield from scan.chunk((form.closes,))
        if not chunk and not stop:
            scan.sink.reasoning(waiting)  # it was cut: these line breaks stand next to no mark
            return
        text = waiting + chunk
        sure = text.rstrip("\n")
        waiting = text[len(sure) :]
        scan.sink.reasoning(sure)
    yield from _line_breaks(scan)


def keep_reasoning(scan: Scan, form: ReasoningForm, *, opened: bool) -> Steps[None]:
    """Hand the reasoning out as text, marks and all: no reader of calls may look into it."""
    scan.mark()
    spaces = ""
    while (yield from scan.literal("\n")):
        spaces += "\n"
    if not (yield from scan.literal(form.opens)):
        scan.reject()
        if not opened:
            return
    else:
        scan.accept()
        scan.sink.text(spaces + form.opens)
    while True:
        text, stop = yield from scan.chunk((form.closes,))
        scan.sink.text(text + stop)
        if stop or not text:
            return


def _line_breaks(scan: Scan) -> Steps[None]:
    while (yield from scan.literal("\n")):
        pass


class ReasoningCount:
    """How many of an answer's tokens are reasoning, the closing mark among them. pieces: every token id's bytes."""

    def __init__(self, form: ReasoningForm, pieces: Sequence[bytes], *, opened: bool) -> None:
        self.num_tokens = 0
        self._opens = form.opens.encode()
        self._closes = form.closes.encode()
        self._pieces = pieces
        self._inside: bool | None = True if opened else None  # None: not known yet
        self._tail = b""
        self._undecided = 0

    def see(self, tokens: Iterable[int]) -> None:
        """Take note of the next tokens."""
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
