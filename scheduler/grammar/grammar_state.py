"""Requests whose answers must match a grammar: who waits for it to be compiled, and where each stands in it.

A request's place in its grammar is a function of the grammar and its output tokens, so a retraction changes nothing
about it. Knows neither how grammars are compiled nor what a token means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ebbtide.messages import UseVocabulary

from ..metrics import SchedulerMetrics
from ..request import Request


class Matcher(Protocol):
    """A place in a grammar (``ebbtide.grammar.GrammarMatcher``). mask: as in ``PlanItem``."""

    @property
    def mask(self) -> bytes: ...

    @property
    def complete(self) -> bool:
        """Nothing but the end may follow."""

    def copy(self) -> Matcher:
        """An independent matcher in the same place."""

    def advance(self, token: int) -> None:
        """Go on by one token. Raises GrammarError if it is not allowed, or all has become too costly."""

    def without_end(self) -> bytes:
        """The mask without the tokens that end an answer."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What compiling a grammar came to: a matcher before its first token, or what is wrong with it."""

    matcher: Matcher | None
    problem: str = ""


class GrammarCompiler(Protocol):
    """Compiles elsewhere: nothing here waits for it."""

    def use(self, vocabulary: UseVocabulary) -> None:
        """The tokens of the model; said before the first grammar."""

    def poll(self, grammar: str) -> Compiled | None:
        """The outcome for a grammar; None while it is not known. The first question starts the work."""

    def take_times(self) -> list[float]:
        """Seconds of each compilation that has ended since the last call."""


class NoCompiler:
    """For a scheduler that nobody gives grammars: one that comes all the same is refused."""

    def use(self, vocabulary: UseVocabulary) -> None:
        """Nothing is compiled."""

    def poll(self, grammar: str) -> Compiled | None:
        """See ``GrammarCompiler``."""
        return Compiled(None, "There is no compiler for grammars.")

    def take_times(self) -> list[float]:
        """See ``GrammarCompiler``."""
        return []


@dataclass(slots=True)
class _Place:
    """start: before the first token, shared. matcher: behind ``count`` output tokens."""

    start: Matcher
    matcher: Matcher
    count: int = 0


class Grammars:
    """The requests that have a grammar, from their arrival to their end."""

    def __init__(self, compiler: GrammarCompiler, metrics: SchedulerMetrics) -> None:
        self._compiler = compiler
        self._metrics = metrics
        self._waiting: dict[str, Request] = {}
        self._places: dict[str, _Place] = {}

    @property
    def num_waiting(self) -> int:
        """Requests whose grammar is being compiled."""
        return len(self._waiting)

    def use(self, vocabulary: UseVocabulary) -> None:
        """See ``GrammarCompiler``."""
        self._compiler.use(vocabulary)

    def add(self, req: Request) -> None:
        """A new request. Until ``ready`` it must not be admitted."""
        if req.grammar:
            self._waiting[req.rid] = req

    def ready(self, req: Request) -> bool:
        """Whether ``req`` may start as far as its grammar is concerned."""
        return req.rid not in self._waiting

    def poll(self) -> list[tuple[Request, str]]:
        """Look which grammars are compiled by now; the requests whose grammar is of no use, and why."""
        failed = []
        for req in list(self._waiting.values()):
            compiled = self._compiler.poll(req.grammar)
            if compiled is None:
                continue
            if compiled.matcher is None:
                failed.append((req, compiled.problem))
                continue
            del self._waiting[req.rid]
            self._places[req.rid] = _Place(compiled.matcher, compiled.matcher.copy())
        for seconds in self._compiler.take_times():
            self._metrics.observe("grammar_compilation_time_seconds", seconds)
        return failed

    def mask(self, req: Request) -> bytes:
        """The ids that may follow the tokens collected so far; b"" for a request without a grammar."""
        if not req.grammar:
            return b""
        matcher = self._synced(req).matcher
        return matcher.without_end() if req.sampling.ignore_eos else matcher.mask

    def advance(self, req: Request, token: int) -> bool:
        """Book that ``token`` comes next in ``req``; whether nothing can follow it. Raises GrammarError."""
        if not req.grammar:
            return False
        place = self._synced(req)
        place.matcher.advance(token)
        place.count += 1
        return place.matcher.complete

    def forget(self, req: Request) -> None:
        """``req`` has ended."""
        self._waiting.pop(req.rid, None)
        self._places.pop(req.rid, None)

    def _synced(self, req: Request) -> _Place:
        """The place behind the request's outputs. Only a token that was taken back has to be walked around."""
        place = self._places[req.rid]
        if place.count != req.num_outputs:
            place.matcher = place.start.copy()
            place.count = 0
            for token in req.outputs:
                place.matcher.advance(token)
                place.count += 1
        return place
