"""What a session is: committed turns of token ids. Holds state; decides nothing.

A streaming session is one growing list. A plain one is a tree of turns, so that any earlier turn can be continued.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """max_sessions: open at once; max_per_owner: of one owner, None for as many.

    timeout_s: idle seconds until a session ends, unless it was opened with its own.
    """

    max_sessions: int = 1000
    timeout_s: float = 600.0
    max_per_owner: int | None = None


class Slots(Protocol):
    """Who keeps the K/V of streaming sessions."""

    def begin_turn(self, session: str, rid: str) -> None: ...

    def end_turn(self, rid: str) -> None: ...

    def close(self, session: str) -> None: ...

    def truncate(self, session: str, num_tokens: int) -> None: ...

    def held_pages(self, session: str) -> int: ...


@dataclass(slots=True, eq=False)
class Turn:
    """One committed turn of a plain session: its own tokens after the first ``keep`` tokens of its parent's context.

    input_len: length of the context when its output began.
    """

    name: str
    parent: Turn | None
    keep: int
    tokens: list[int]
    input_len: int

    def context(self) -> list[int]:
        """All tokens from the beginning of the conversation to the end of this turn."""
        pieces: list[list[int]] = []
        turn: Turn | None = self
        end = self.keep + len(self.tokens)
        while turn is not None:
            pieces.append(turn.tokens[: max(end - turn.keep, 0)])
            end = min(end, turn.keep)
            turn = turn.parent
        return [token for piece in reversed(pieces) for token in piece]

    def descends_from(self, other: Turn | None) -> bool:
        """Whether ``other`` is this turn or one before it."""
        turn: Turn | None = self
        while turn is not None and turn is not other:
            turn = turn.parent
        return turn is other


@dataclass(slots=True, eq=False)
class Session:
    """An open session. key: unlike the id, never used again. owned_id: owner and id, as clients name it.

    tokens: the committed tokens of a streaming one. turns: of a plain one by name, in order of their end. names: turn
    names that clients chose. open_turns: those that run or wait, by rid. last_rid, last_input_len: the newest committed
    turn, which a stop string that was found late may still shorten.
    """

    key: str
    owned_id: tuple[str, str]
    streaming: bool
    timeout_s: float
    last_active_s: float
    tokens: list[int] = field(default_factory=list)
    turns: dict[str, Turn] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    open_turns: dict[str, Lease] = field(default_factory=dict)
    num_turns: int = 0
    last_rid: str = ""
    last_input_len: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it stores."""
        return len(self.tokens) + sum(len(turn.tokens) for turn in self.turns.values())

    @property
    def deadline_s(self) -> float:
        """When it expires, unless a turn runs or waits then."""
        return self.last_active_s + self.timeout_s


@dataclass(slots=True, eq=False)
class Lease:
    """A turn from its acceptance to its end: only its holder may commit it or clear it.

    named: the client chose the name. In a plain session, parent and keep: where it branches off; replace: the parent's
    other descendants go when it is committed. closing: the first token of what closes a chat's answers, if that is one.
    """

    session: Session
    name: str
    named: bool
    parent: Turn | None = None
    keep: int = 0
    replace: bool = False
    closing: list[int] = field(default_factory=list)
