"""Answers taken apart: each delta of a choice as fragments of text, reasoning and calls, whole and stream alike.

Every API that answers in turns reads through this and writes the fragments in its own form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ebbtide.tokenizer_mgr.response_stream import Delta

from .content_parts import Fragment, FragmentSink, Kind
from .reasoning import ReasoningCount, ReasoningForm, keep_reasoning, read_reasoning
from .tools.stream_scanner import Scan, Steps


class Reasoning(Enum):
    """What becomes of the reasoning."""

    SHOWN = "shown"
    AT_ONCE = "at once"  # shown when it is complete
    LEFT_OUT = "left out"
    IN_TEXT = "in text"  # not told from the text, marks and all


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """How the answers to one request are read. read_calls: the reader of calls; None if none can come.

    reasoning: None for a model without. opened: the prompt ends within the reasoning. max_calls: None is no limit.
    pieces: every token id's bytes, to count the tokens of the reasoning.
    """

    reasoning: ReasoningForm | None = None
    opened: bool = False
    shows: Reasoning = Reasoning.SHOWN
    read_calls: Callable[[Scan], Steps[None]] | None = None
    max_calls: int | None = None
    pieces: Sequence[bytes] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Reading:
    """One delta, read. Whatever is not in here (tokens, log-probabilities, counts) is in ``delta``.

    finish: "tool_calls" when the model stopped behind complete calls, else as in the delta: "stop", "length" or None.
    kind: what the delta's tokens belong to where it has no fragments. reasoning_tokens: total so far; None for a model
    without reasoning.
    """

    delta: Delta
    fragments: list[Fragment]
    finish: str | None
    kind: Kind = Kind.TEXT
    reasoning_tokens: int | None = None

    def joined(self, kind: Kind) -> str:
        """The text of all fragments of this kind."""
        return "".join([fragment.text for fragment in self.fragments if fragment.kind is kind])


@dataclass(slots=True)
class ReadCall:
    """A call in one piece."""

    id: str
    name: str
    arguments: str = ""


class Readers:
    """One reader for each choice of a request, made when the choice is first heard of."""

    def __init__(self, plan: ReadingPlan) -> None:
        self._plan = plan
        self._readers: dict[int, _Reader] = {}

    def read(self, delta: Delta) -> Reading:
        """The next delta of its choice."""
        if self._plan.reasoning is None and self._plan.read_calls is None:
            return Reading(delta, [Fragment(Kind.TEXT, delta.text)] if delta.text else [], delta.finish)
        reader = self._readers.get(delta.index)
        if reader is None:
            reader = self._readers[delta.index] = _Reader(self._plan)
        return reader.read(delta)


def joined_calls(fragments: list[Fragment]) -> list[ReadCall]:
    """The calls in these fragments, which are a whole answer's."""
    calls: list[ReadCall] = []
    for fragment in fragments:
        if fragment.name is not None and fragment.id is not None:
            calls.append(ReadCall(fragment.id, fragment.name))
        elif fragment.call is not None:
            calls[fragment.call].arguments += fragment.text
    return calls


class _Reader:
    """One choice's place in its answer."""

    def __init__(self, plan: ReadingPlan) -> None:
        self._plan = plan
        self._sink = FragmentSink(plan.max_calls, Kind.REASONING if plan.opened else Kind.TEXT)
        self._scan = Scan(self._sink)
        self._steps = self._read_all()
        self._reasoning: list[str] = []
        self._count = (
            None if plan.reasoning is None else ReasoningCount(plan.reasoning, plan.pieces, opened=plan.opened)
        )

    def read(self, delta: Delta) -> Reading:
        self._scan.feed(delta.text)
        if delta.finish is not None:
            self._scan.end()
        next(self._steps, None)
        if self._count is not None:
            self._count.see(delta.tokens)
        return Reading(
            delta,
            self._shown(self._sink.take(), ends=delta.finish is not None),
            self._finish(delta.finish),
            self._sink.kind,
            None if self._count is None else self._count.num_tokens,
        )

    def _read_all(self) -> Steps[None]:
        plan = self._plan
        if plan.reasoning is not None:
            read = keep_reasoning if plan.shows is Reasoning.IN_TEXT else read_reasoning
            yield from read(self._scan, plan.reasoning, opened=plan.opened)
        if plan.read_calls is not None:
            yield from plan.read_calls(self._scan)
        yield from self._scan.text_until(())
        self._sink.end()

    def _finish(self, finish: str | None) -> str | None:
        called = self._sink.num_calls and not self._sink.call_open
        return "tool_calls" if finish == "stop" and called else finish

    def _shown(self, fragments: list[Fragment], *, ends: bool) -> list[Fragment]:
        if self._plan.shows is Reasoning.LEFT_OUT:
            return [fragment for fragment in fragments if fragment.kind is not Kind.REASONING]
        if self._plan.shows is Reasoning.AT_ONCE:
            return self._gathered(fragments, ends=ends)
        return fragments

    def _gathered(self, fragments: list[Fragment], *, ends: bool) -> list[Fragment]:
        """Reasoning waits until something else comes."""
        self._reasoning += [fragment.text for fragment in fragments if fragment.kind is Kind.REASONING]
        rest = [fragment for fragment in fragments if fragment.kind is not Kind.REASONING]
        if not self._reasoning or not (rest or ends):
            return rest
        gathered = Fragment(Kind.REASONING, "".join(self._reasoning))
        self._reasoning.clear()
        return [gathered, *rest]
