"""Builds the full prompt of a session's next turn: the committed context plus the new tokens."""

from __future__ import annotations

from ebbtide.errors import Rejected
from ebbtide.messages import SessionTurn

from .session import CommittedTurn, Lease, Session


def append_turn(session: Session, turn: SessionTurn, rid: str, prompt: list[int]) -> tuple[Lease, list[int]]:
    """Return the lease and the full prompt of a streaming session's next turn.

    Raises Rejected if another turn is open, or if the turn has an option that streaming sessions do not support.
    """
    if turn.parent or turn.offset >= 0 or turn.replace or turn.drop_previous_output:
        raise Rejected(
            "A streaming session is append-only: rid, offset, replace and drop_previous_output are not allowed."
        )
    if session.open_turns:
        raise _busy()
    is_first = not session.num_turns
    return _lease(session, turn, rid), session.tokens + _addition(prompt, turn, session.tokens, is_first=is_first)


def branch_turn(session: Session, turn: SessionTurn, rid: str, prompt: list[int]) -> tuple[Lease, list[int]]:
    """Return the lease and the full prompt of a plain session's turn, which continues the latest or a named turn.

    Raises Rejected if the turn to continue does not exist or is still open, or if the turn's options are invalid.
    """
    parent = _parent(session, turn)
    context = [] if parent is None else parent.context()
    keep = len(context)
    if turn.offset >= 0 and turn.drop_previous_output:
        raise Rejected("'offset' and 'drop_previous_output' are mutually exclusive.", param="offset")
    if turn.offset > keep:
        raise Rejected(f"'offset' is {turn.offset}, but the previous context has {keep} tokens.", param="offset")
    if turn.offset >= 0:
        keep = turn.offset
    elif turn.drop_previous_output and parent is not None:
        keep = parent.input_len
    del context[keep:]
    lease = _lease(session, turn, rid)
    lease.parent, lease.keep, lease.replace = parent, keep, turn.replace
    return lease, context + _addition(prompt, turn, context, is_first=parent is None)


def remove_descendants(session: Session, parent: CommittedTurn | None) -> None:
    """Remove all descendants of ``parent``, or all turns if ``parent`` is None."""
    kept = {name: turn for name, turn in session.turns.items() if turn is parent or not turn.descends_from(parent)}
    session.turns = kept
    session.names &= {*kept, *(lease.name for lease in session.open_turns.values())}


def _lease(session: Session, turn: SessionTurn, rid: str) -> Lease:
    if turn.turn and turn.turn in session.names:
        raise _conflict("duplicate_turn", f"The session already has a turn {turn.turn[:100]!r}.")
    answer_end = (turn.continuation or [])[: turn.head]
    return Lease(session, turn.turn or rid, bool(turn.turn), answer_end=answer_end[:1])


def _parent(session: Session, turn: SessionTurn) -> CommittedTurn | None:
    """Return the turn to continue; None if ``turn`` starts the session or replaces all of its turns."""
    if turn.replace and session.open_turns:
        raise _busy()
    if turn.replace and not turn.parent:
        return None  # the turn replaces the whole session
    if turn.parent in session.turns:
        return session.turns[turn.parent]
    if any(lease.name == turn.parent for lease in session.open_turns.values()):
        raise _busy()
    if turn.parent:
        text = f"The session has no turn {turn.parent[:100]!r}."
        raise Rejected(text, status=404, kind="not_found_error", code="turn_not_found", param="rid")
    if session.open_turns:
        raise _busy()  # the latest turn is not known while a turn is open
    return next(reversed(session.turns.values()), None)


def _addition(prompt: list[int], turn: SessionTurn, before: list[int], *, is_first: bool) -> list[int]:
    """Return the tokens that the turn adds to ``before``. Raises Rejected if the turn adds no tokens."""
    added = prompt if is_first or turn.continuation is None else _without_repeats(turn.continuation, turn.head, before)
    if not added and turn.refusal:
        raise Rejected(turn.refusal, code="session_chat_unsupported", param="messages")
    if not added:
        raise Rejected("The turn adds no tokens to the session.", param="prompt")
    return added


def _without_repeats(continuation: list[int], head: int, before: list[int]) -> list[int]:
    """Return ``continuation`` without its leading tokens (at most ``head``) with which ``before`` already ends."""
    for count in range(min(head, len(before)), 0, -1):
        if before[-count:] == continuation[:count]:
            return continuation[count:]
    return continuation


def _busy() -> Rejected:
    return _conflict(
        "session_busy", "A turn of this session is running or waiting. Send the next turn after it has ended."
    )


def _conflict(code: str, text: str) -> Rejected:
    return Rejected(text, status=409, kind="conflict_error", code=code, should_retry=False)
