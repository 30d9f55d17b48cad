"""Answers taken apart: each delta of a choice as parts of text, reasoning and calls, whole and stream alike.

Every API that answers in turns reads through this and writes the parts in its own form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ebbtide.tokenizer_mgr.response_stream import Delta

from .content_parts import ContentPart, ContentPartSink, Kind
from .reasoning import ReasoningFormat, ReasoningTokenCounter, keep_reasoning, read_reasoning
from .tools.stream_scanner import ParserCoroutine, StreamScanner


class ReasoningMode(Enum):
    """What becomes of the reasoning."""

    SHOWN = "shown"
    WHEN_COMPLETE = "when complete"  # shown when it is complete
    OMITTED = "omitted"
    INLINE = "inline"  # not told from the text, marks and all


@dataclass(frozen=True, slots=True)
class ParserConfig:
    """How the outputs of one request are parsed.

    Attributes:
        reasoning: format of the model's reasoning; None if the model does not reason.
        starts_in_reasoning: the prompt ends inside the reasoning.
        reasoning_mode: how reasoning is returned.
        parse_calls: parser of tool calls; None if there can be none.
        max_calls: further calls are dropped; None for no limit.
        pieces: bytes of every token id, to count reasoning tokens.
    """

    reasoning: ReasoningFormat | None = None
    starts_in_reasoning: bool = False
    reasoning_mode: ReasoningMode = ReasoningMode.SHOWN
    parse_calls: Callable[[StreamScanner], ParserCoroutine[None]] | None = None
    max_calls: int | None = None
    pieces: Sequence[bytes] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """One delta, read. Whatever is not in here (tokens, log-probabilities, counts) is in ``delta``.

    finish: "tool_calls" when the model stopped behind complete calls, else as in the delta: "stop", "length" or None.
    kind: what the delta's tokens belong to where it has no parts. reasoning_tokens: total so far; None for a model
    without reasoning.
    """

    delta: Delta
    parts: list[ContentPart]
    finish: str | None
    kind: Kind = Kind.TEXT
    reasoning_tokens: int | None = None

    def text_of(self, kind: Kind) -> str:
        """The text of all parts of this kind."""
        return "".join([part.text for part in self.parts if part.kind is kind])


@dataclass(slots=True)
class ParsedCall:
    """A call in one piece."""

    id: str
    name: str
    arguments: str = ""


class OutputParsers:
    """One parser for each choice of a request, made when the choice is first heard of."""

    def __init__(self, config: ParserConfig) -> None:
        self._config = config
        self._parsers: dict[int, _ChoiceParser] = {}

    def parse(self, delta: Delta) -> ParsedDelta:
        """The next delta of its choice."""
        if self._config.reasoning is None and self._config.parse_calls is None:
            return ParsedDelta(delta, [ContentPart(Kind.TEXT, delta.text)] if delta.text else [], delta.finish)
        parser = self._parsers.get(delta.index)
        if parser is None:
            parser = self._parsers[delta.index] = _ChoiceParser(self._config)
        return parser.parse(delta)


def join_calls(parts: list[ContentPart]) -> list[ParsedCall]:
    """The calls in these parts, which are a whole answer's."""
    calls: list[ParsedCall] = []
    for part in parts:
        if part.name is not None and part.id is not None:
            calls.append(ParsedCall(part.id, part.name))
        elif part.call is not None:
            calls[part.call].arguments += part.text
    return calls


class _ChoiceParser:
    """One choice's place in its answer."""

    def __init__(self, config: ParserConfig) -> None:
        self._config = config
        self._sink = ContentPartSink(config.max_calls, Kind.REASONING if config.starts_in_reasoning else Kind.TEXT)
        self._scanner = StreamScanner(self._sink)
        self._coroutine = self._parse_all()
        self._reasoning: list[str] = []
        self._count = (
            None
            if config.reasoning is None
            else ReasoningTokenCounter(config.reasoning, config.pieces, starts_in_reasoning=config.starts_in_reasoning)
        )

    def parse(self, delta: Delta) -> ParsedDelta:
        self._scanner.feed(delta.text)
        if delta.finish is not None:
            self._scanner.end_input()
        next(self._coroutine, None)
        if self._count is not None:
            self._count.add(delta.tokens)
        return ParsedDelta(
            delta,
            self._apply_mode(self._sink.take_parts(), ends=delta.finish is not None),
            self._finish(delta.finish),
            self._sink.kind,
            None if self._count is None else self._count.num_tokens,
        )

    def _parse_all(self) -> ParserCoroutine[None]:
        config = self._config
        if config.reasoning is not None:
            parse = keep_reasoning if config.reasoning_mode is ReasoningMode.INLINE else read_reasoning
            yield from parse(self._scanner, config.reasoning, starts_in_reasoning=config.starts_in_reasoning)
        if config.parse_calls is not None:
            yield from config.parse_calls(self._scanner)
        yield from self._scanner.emit_text_until(())
        self._sink.finish()

    def _finish(self, finish: str | None) -> str | None:
        called = self._sink.num_calls and not self._sink.call_open
        return "tool_calls" if finish == "stop" and called else finish

    def _apply_mode(self, parts: list[ContentPart], *, ends: bool) -> list[ContentPart]:
        if self._config.reasoning_mode is ReasoningMode.OMITTED:
            return [part for part in parts if part.kind is not Kind.REASONING]
        if self._config.reasoning_mode is ReasoningMode.WHEN_COMPLETE:
            return self._hold_reasoning(parts, ends=ends)
        return parts

    def _hold_reasoning(self, parts: list[ContentPart], *, ends: bool) -> list[ContentPart]:
        """Reasoning waits until something else comes."""
        self._reasoning += [part.text for part in parts if part.kind is Kind.REASONING]
        rest = [part for part in parts if part.kind is not Kind.REASONING]
        if not self._reasoning or not (rest or ends):
            return rest
        gathered = ContentPart(Kind.REASONING, "".join(self._reasoning))
        self._reasoning.clear()
        return [gathered, *rest]
