"""Tracks requests whose output must match a grammar: whether their grammar is compiled, and their position in it.

The position is a function of the grammar and the output tokens, so a retraction does not change it. This module
depends neither on how grammars are compiled nor on the text of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ebbtide.messages import AbortReq, UseVocabulary

from ..metrics import SchedulerMetrics
from ..request import Request


class Matcher(Protocol):
    """A position in a grammar (``ebbtide.grammar.GrammarMatcher``).

    Attributes:
        mask: the tokens that the grammar allows next, in the format of ``PlanItem.mask``
    """

    @property
    def mask(self) -> bytes: ...

    @property
    def complete(self) -> bool:
        """True if only a token that ends the output may follow."""

    def copy(self) -> Matcher:
        """Return an independent matcher at the same position."""

    def advance(self, token: int) -> None:
        """Advance by one token.

        Raises GrammarError if the grammar does not allow the token, or if matching has become too expensive.
        """

    def without_end(self) -> bytes:
        """Return the mask without the tokens that end the output."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The result of a compilation: a matcher at the beginning of the grammar, or the reason for the failure."""

    matcher: Matcher | None
    problem: str = ""


class GrammarCompiler(Protocol):
    """Compiles grammars in the background."""

    def set_vocabulary(self, vocabulary: UseVocabulary) -> None:
        """Set the model's tokens. Call this before the first ``poll``."""

    def poll(self, grammar: str) -> Compiled | None:
        """Return the compilation result of a grammar.

        Returns None until the grammar is compiled; the first call starts the compilation.
        """

    def drain_durations(self) -> list[float]:
        """Return the durations, in seconds, of the compilations that ended since the last call."""


class NoCompiler:
    """A compiler that refuses every grammar."""

    def set_vocabulary(self, vocabulary: UseVocabulary) -> None:
        """See ``GrammarCompiler``."""

    def poll(self, grammar: str) -> Compiled | None:
        """See ``GrammarCompiler``."""
        return Compiled(None, "there is no grammar compiler.")

    def drain_durations(self) -> list[float]:
        """See ``GrammarCompiler``."""
        return []


@dataclass(slots=True)
class GrammarState:
    """A request's position in its grammar.

    Attributes:
        start: the matcher before the first token; shared between requests.
        matcher: the matcher after ``count`` output tokens.
    """

    start: Matcher
    matcher: Matcher
    count: int = 0


class Grammars:
    """Keeps the grammar state of requests with a grammar, from their arrival to their end.

    It implements ``Gate``: a request waits until its grammar is compiled.
    """

    def __init__(self, compiler: GrammarCompiler, metrics: SchedulerMetrics) -> None:
        self._compiler = compiler
        self._metrics = metrics
        self._waiting: dict[str, Request] = {}
        self._states: dict[str, GrammarState] = {}

    @property
    def num_waiting(self) -> int:
        """Number of requests whose grammar is being compiled."""
        return len(self._waiting)

    def set_vocabulary(self, vocabulary: UseVocabulary) -> None:
        """See ``GrammarCompiler``."""
        self._compiler.set_vocabulary(vocabulary)

    def add(self, req: Request) -> None:
        """See ``Gate``."""
        if req.grammar:
            self._waiting[req.rid] = req

    def ready(self, req: Request) -> bool:
        """See ``Gate``."""
        return req.rid not in self._waiting

    def why(self, req: Request) -> str:
        """See ``Gate``."""
        return "its grammar is being compiled" if req.rid in self._waiting else ""

    def poll(self) -> list[tuple[Request, AbortReq]]:
        """See ``Gate``: a request whose grammar does not compile is aborted."""
        failed = []
        for req in list(self._waiting.values()):
            compiled = self._compiler.poll(req.grammar)
            if compiled is None:
                continue
            if compiled.matcher is None:
                failed.append((req, grammar_abort(req, compiled.problem)))
                continue
            del self._waiting[req.rid]
            self._states[req.rid] = GrammarState(compiled.matcher, compiled.matcher.copy())
        for seconds in self._compiler.drain_durations():
            self._metrics.observe("grammar_compilation_time_seconds", seconds)
        return failed

    def mask(self, req: Request) -> bytes:
        """Return the mask of the tokens that may follow the output so far, in the format of ``PlanItem.mask``.

        ``req`` must have a grammar.
        """
        matcher = self._synced(req).matcher
        return matcher.without_end() if req.sampling.ignore_eos else matcher.mask

    def advance(self, req: Request, token: int) -> bool:
        """Advance the position of ``req`` in its grammar by ``token``. ``req`` must have a grammar.

        Returns:
            True if the grammar allows no further token, except one that ends the output.

        Raises:
            GrammarError: if the grammar does not allow ``token``, or if matching has become too expensive.
        """
        state = self._synced(req)
        state.matcher.advance(token)
        state.count += 1
        return state.matcher.complete

    def forget(self, req: Request) -> None:
        """See ``Gate``."""
        self._waiting.pop(req.rid, None)
        self._states.pop(req.rid, None)

    def _synced(self, req: Request) -> GrammarState:
        """Return the grammar state after the request's output tokens.

        The tokens are replayed only if the state does not match their number, because some were dropped.
        """
        state = self._states[req.rid]
        if state.count != req.num_outputs:
            state.matcher = state.start.copy()
            state.count = 0
            for token in req.outputs:
                state.matcher.advance(token)
                state.count += 1
        return state


def grammar_abort(req: Request, why: str) -> AbortReq:
    """Create the abort message for a request whose answer cannot be continued within its grammar."""
    message = f"The answer cannot be continued within its grammar: {why}"
    return AbortReq(req.rid, "grammar_failed", 500, "grammar_failed", message, req.num_outputs)
