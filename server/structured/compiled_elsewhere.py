"""Structured output for requests that are prepared in a thread: their grammars are compiled on the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from ebbtide.grammar import ReasoningPrefix

from .constraints import Constraint, ConstraintFields, constraint_of


class Grammars(Protocol):
    """The methods of ``StructuredOutput`` that are needed to prepare a request."""

    async def compile(
        self, constraint: Constraint, *, prefix: ReasoningPrefix | None = None, alternative: str = ""
    ) -> str:
        """Return the value of ``PreparedRequest.grammar`` for a constraint."""

    def mark(self, text: str) -> str:
        """Return a marker as a Lark expression: a control token or the marker's text."""

    def close(self) -> None:
        """Stop the threads."""


async def request_grammar(
    grammars: Grammars, fields: ConstraintFields, *, prefix: ReasoningPrefix | None = None, alternative: str = ""
) -> str:
    """Return the value of ``PreparedRequest.grammar`` for a request; "" if the request has no constraint.

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
        """See ``Grammars``. Raises Rejected if the constraint cannot be compiled."""
        compiling = self.grammars.compile(constraint, prefix=prefix, alternative=alternative)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(compiling, self.loop))

    def mark(self, text: str) -> str:
        """See ``Grammars``."""
        return self.grammars.mark(text)

    def close(self) -> None:
        """Do nothing: the owner of ``grammars`` closes them."""
