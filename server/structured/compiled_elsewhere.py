"""Structured output for requests that are prepared in a thread: their grammars are compiled on the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from ebbtide.grammar import ReasoningPrefix

from .constraints import Constraint, ConstraintFields, constraint_of


class Grammars(Protocol):
    """The part of ``StructuredOutput`` that prepares a request."""

    async def compile(
        self, constraint: Constraint, *, prefix: ReasoningPrefix | None = None, alternative: str = ""
    ) -> str:
        """Return ``PreparedRequest.grammar`` for a constraint."""

    def mark(self, text: str) -> str:
        """Return a marker of the model as a Lark expression."""

    def close(self) -> None:
        """Stop the threads."""


async def request_grammar(
    grammars: Grammars, fields: ConstraintFields, *, prefix: ReasoningPrefix | None = None, alternative: str = ""
) -> str:
    """Return ``PreparedRequest.grammar`` for a request; "" if it has no constraint.

    Raises Rejected if the constraint is invalid or cannot be compiled.
    """
    constraint = constraint_of(fields)
    return "" if constraint is None else await grammars.compile(constraint, prefix=prefix, alternative=alternative)


@dataclass(frozen=True, slots=True)
class CompiledElsewhere:
    """Compiles constraints with ``grammars`` on ``loop`` for a request that is prepared in another thread."""

    grammars: Grammars
    loop: asyncio.AbstractEventLoop

    async def compile(
        self, constraint: Constraint, *, prefix: ReasoningPrefix | None = None, alternative: str = ""
    ) -> str:
        """Return ``PreparedRequest.grammar`` for a constraint. Raises Rejected if the constraint cannot be compiled."""
        compiling = self.grammars.compile(constraint, prefix=prefix, alternative=alternative)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(compiling, self.loop))

    def mark(self, text: str) -> str:
        """Return a marker of the model as a Lark expression: its text or a control token."""
        return self.grammars.mark(text)

    def close(self) -> None:
        """Do nothing: the owner of ``grammars`` closes them."""
