"""The slots of one running request in the state pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from ..node import PathElement


@dataclass(slots=True)
class SavedState:
    """A copy of a request's state that is not part of the prefix tree yet.

    Attributes:
        num_tokens: the state is the one after this number of tokens.
        is_settled: True once the step that makes the copy is settled.
    """

    num_tokens: int
    slot: int
    is_settled: bool = False


@dataclass(slots=True)
class StateSlots:
    """The slots of one running request.

    Attributes:
        pages: the working slot, whose state each step advances; empty before the first step.
        saved: copies for the prefix tree, in order of their numbers of tokens.
        source: slot whose state the first step starts from; -1 for the state before the first token.
        sent: 1 once a plan contained the working slot.
        node: the last node of the cached prefix, or of the published tokens; None without a prefix cache.
        num_cached: number of pages of tokens up to the end of ``node``.
    """

    first: ClassVar[int] = 0
    num_shared: ClassVar[int] = 0
    pages: list[int] = field(default_factory=list)
    saved: list[SavedState] = field(default_factory=list)
    source: int = -1
    sent: int = 0
    node: PathElement | None = None
    num_cached: int = 0

    @property
    def slots(self) -> list[int]:
        """All slots that the request owns."""
        return [*self.pages, *(state.slot for state in self.saved)]

    def ends(self, num_tokens: int) -> Iterable[SavedState]:
        """Return the copies of the state after at most ``num_tokens`` tokens."""
        return [state for state in self.saved if state.num_tokens <= num_tokens]
