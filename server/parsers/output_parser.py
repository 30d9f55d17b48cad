"""Parses the output deltas of each choice into text, reasoning and tool calls, for streaming and non-streaming
responses.

All chat APIs use this parser and convert the parts to their own format.
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
    """How reasoning is returned."""

    SHOWN = "shown"
    WHEN_COMPLETE = "when complete"  # returned as one part after its end
    OMITTED = "omitted"
    INLINE = "inline"  # left in the text, including the markers


@dataclass(frozen=True, slots=True)
class ParserConfig:
    """The parser options for the outputs of one request.

    Attributes:
        reasoning: format of the model's reasoning; None if the model does not reason.
        starts_in_reasoning: True if the prompt ends inside a reasoning block.
        reasoning_mode: how reasoning is returned.
        parse_calls: parser for tool calls; None if the output cannot have calls.
        max_calls: maximum number of calls; further calls are dropped. None for no limit.
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
    """One parsed delta. Tokens, log-probabilities and counts are in ``delta``.

    Attributes:
        finish: the finish reason: "tool_calls" if the model stopped after complete calls, else that of the delta.
        kind: kind of the latest part so far, which is also the kind of the delta's tokens if the delta has no parts.
        reasoning_tokens: number of reasoning tokens so far; None if the model does not reason.
    """

    delta: Delta
    parts: list[ContentPart]
    finish: str | None
    kind: Kind = Kind.TEXT
    reasoning_tokens: int | None = None

    def text_of(self, kind: Kind) -> str:
        """Return the joined text of all parts of one kind."""
        return "".join([part.text for part in self.parts if part.kind is kind])


@dataclass(slots=True)
class ParsedCall:
    """A complete call."""

    id: str
    name: str
    arguments: str = ""


class OutputParsers:
    """Parses the deltas of a request, with one parser per choice."""

    def __init__(self, config: ParserConfig) -> None:
        self._config = config
        self._parsers: dict[int, _ChoiceParser] = {}

    def parse(self, delta: Delta) -> ParsedDelta:
        """Parse the next delta of a choice."""
        if self._config.reasoning is None and self._config.parse_calls is None:
            return ParsedDelta(delta, [ContentPart(Kind.TEXT, delta.text)] if delta.text else [], delta.finish)
        parser = self._parsers.get(delta.index)
        if parser is None:
            parser = self._parsers[delta.index] = _ChoiceParser(self._config)
        return parser.parse(delta)


def join_calls(parts: list[ContentPart]) -> list[ParsedCall]:
    """Return the calls in the parts of a complete output."""
    calls: list[ParsedCall] = []
    for part in parts:
        if part.name is not None and part.id is not None:
            calls.append(ParsedCall(part.id, part.name))
        elif part.call is not None:
            calls[part.call].arguments += part.text
    return calls


class _ChoiceParser:
    """Parses the output of one choice."""

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
        """Hold back reasoning until another part or the end of the output follows."""
        self._reasoning += [part.text for part in parts if part.kind is Kind.REASONING]
        rest = [part for part in parts if part.kind is not Kind.REASONING]
        if not self._reasoning or not (rest or ends):
            return rest
        gathered = ContentPart(Kind.REASONING, "".join(self._reasoning))
        self._reasoning.clear()
        return [gathered, *rest]
