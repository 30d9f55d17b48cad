"""The state of a session: committed turns of token ids. The module makes no decisions.

A streaming session is a single list of tokens that only grows. A plain session is a tree of turns, so that any earlier
turn can be continued.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Limits on sessions."""

    max_sessions: int = 1000  # maximum number of sessions that are open at the same time
    timeout_s: float = 600.0  # default idle time in seconds until a session expires
    max_per_owner: int | None = None  # maximum number of open sessions of one API key; None for no limit


class SessionKvStore(Protocol):
    """Stores the K/V of streaming sessions by session key. See ``SessionAwareCache``."""

    def begin_turn(self, session: str, rid: str) -> None: ...

    def end_turn(self, rid: str) -> None: ...

    def close(self, session: str) -> None: ...

    def truncate(self, session: str, num_tokens: int) -> None: ...

    def held_pages(self, session: str) -> dict[str, int]: ...


class NoSessionKv:
    """A ``SessionKvStore`` that stores nothing: the turns of streaming sessions use the prefix cache only."""

    def begin_turn(self, session: str, rid: str) -> None:
        """Do nothing."""

    def end_turn(self, rid: str) -> None:
        """Do nothing."""

    def close(self, session: str) -> None:
        """Do nothing."""

    def truncate(self, session: str, num_tokens: int) -> None:
        """Do nothing."""

    def held_pages(self, session: str) -> dict[str, int]:
        """Return {}: a session holds no pages."""
        return {}


@dataclass(slots=True, eq=False)
class CommittedTurn:
    """One committed turn of a plain session."""

    name: str
    parent: CommittedTurn | None
    keep: int  # number of leading tokens of the parent's context that belong to this turn's context
    tokens: list[int]  # the turn's own tokens, which follow that context
    input_len: int  # number of tokens in the turn's context before its output

    def context(self) -> list[int]:
        """Return all tokens from the start of the conversation to the end of this turn."""
        pieces: list[list[int]] = []
        turn: CommittedTurn | None = self
        end = self.keep + len(self.tokens)
        while turn is not None:
            pieces.append(turn.tokens[: max(end - turn.keep, 0)])
            end = min(end, turn.keep)
            turn = turn.parent
        return [token for piece in reversed(pieces) for token in piece]

    def descends_from(self, other: CommittedTurn | None) -> bool:
        """Return True if ``other`` is this turn, one of its ancestors, or None."""
        turn: CommittedTurn | None = self
        while turn is not None and turn is not other:
            turn = turn.parent
        return turn is other


@dataclass(slots=True, eq=False)
class Session:
    """An open session."""

    key: str  # unique for the lifetime of the process, unlike the id
    owned_id: tuple[str, str]  # owner (API key) and session id
    streaming: bool
    timeout_s: float
    last_active_s: float
    tokens: list[int] = field(default_factory=list)  # committed tokens of a streaming session
    turns: dict[str, CommittedTurn] = field(default_factory=dict)  # turns of a plain session, in commit order
    names: set[str] = field(default_factory=set)  # turn names chosen by clients
    open_turns: dict[str, Lease] = field(default_factory=dict)  # running or waiting turns by request id
    num_turns: int = 0  # number of committed turns
    last_rid: str = ""  # request id of the last committed turn while a late stop string may truncate it, else ""
    last_input_len: int = 0  # ``input_len`` of that turn

    @property
    def num_tokens(self) -> int:
        """Number of stored tokens."""
        return len(self.tokens) + sum(len(turn.tokens) for turn in self.turns.values())

    @property
    def deadline_s(self) -> float:
        """The time at which the session expires, unless a turn is open at that time."""
        return self.last_active_s + self.timeout_s


@dataclass(slots=True, eq=False)
class Lease:
    """An open turn. Only the request that holds the lease can commit or discard the turn."""

    session: Session
    name: str
    named: bool  # True if the client chose the name
    parent: CommittedTurn | None = None  # plain session: the turn that it continues
    keep: int = 0  # plain session: see ``CommittedTurn.keep``
    replace: bool = False  # plain session: the commit removes the parent's other descendants
    answer_end: list[int] = field(
        default_factory=list
    )  # the token after an answer in the chat template; [] if there is none
