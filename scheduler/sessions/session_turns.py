"""The whole prompt of a session's next turn: what came before it, and what it adds."""

from __future__ import annotations

from ebbtide.errors import Rejected
from ebbtide.messages import SessionTurn

from .session import Lease, Session, Turn


def append(session: Session, turn: SessionTurn, rid: str, prompt: list[int]) -> tuple[Lease, list[int]]:
    """The next turn of a streaming session. Raises Rejected."""
    if turn.parent or turn.offset >= 0 or turn.replace or turn.drop_previous_output:
        raise Rejected("A streaming session only grows: rid, offset, replace and drop_previous_output are refused.")
    if session.open_turns:
        raise _busy()
    is_first = not session.num_turns
    return _lease(session, turn, rid), session.tokens + _addition(prompt, turn, session.tokens, is_first=is_first)


def branch(session: Session, turn: SessionTurn, rid: str, prompt: list[int]) -> tuple[Lease, list[int]]:
    """A turn of a plain session, after its latest turn or after any other. Raises Rejected."""
    parent = _parent(session, turn)
    context = [] if parent is None else parent.context()
    keep = len(context)
    if turn.offset >= 0 and turn.drop_previous_output:
        raise Rejected("'offset' and 'drop_previous_output' exclude each other.", param="offset")
    if turn.offset > keep:
        raise Rejected(f"'offset' is {turn.offset}, but the turn before has {keep} tokens.", param="offset")
    if turn.offset >= 0:
        keep = turn.offset
    elif turn.drop_previous_output and parent is not None:
        keep = parent.input_len
    del context[keep:]
    lease = _lease(session, turn, rid)
    lease.parent, lease.keep, lease.replace = parent, keep, turn.replace
    return lease, context + _addition(prompt, turn, context, is_first=parent is None)


def cut_off(session: Session, parent: Turn | None) -> None:
    """Forget all turns after ``parent``; all turns when there is none."""
    kept = {name: turn for name, turn in session.turns.items() if turn is parent or not turn.descends_from(parent)}
    session.turns = kept
    session.names &= {*kept, *(lease.name for lease in session.open_turns.values())}


def _lease(session: Session, turn: SessionTurn, rid: str) -> Lease:
    if turn.turn and turn.turn in session.names:
        raise _conflict("duplicate_turn", f"The session has a turn {turn.turn[:100]!r} already.")
    closing = (turn.continuation or [])[: turn.head]
    return Lease(session, turn.turn or rid, bool(turn.turn), closing=closing[:1])


def _parent(session: Session, turn: SessionTurn) -> Turn | None:
    """The turn that it continues; None at the beginning."""
    if turn.replace and session.open_turns:
        raise _busy()
    if turn.replace and not turn.parent:
        return None  # the session begins anew
    if turn.parent in session.turns:
        return session.turns[turn.parent]
    if any(lease.name == turn.parent for lease in session.open_turns.values()):
        raise _busy()
    if turn.parent:
        text = f"The session has no turn {turn.parent[:100]!r}."
        raise Rejected(text, status=404, kind="not_found_error", code="turn_not_found", param="rid")
    if session.open_turns:
        raise _busy()  # the latest turn is not known yet
    return next(reversed(session.turns.values()), None)


def _addition(prompt: list[int], turn: SessionTurn, before: list[int], *, is_first: bool) -> list[int]:
    """What the turn adds to ``before``. Raises Rejected when that is nothing."""
    added = prompt if is_first or turn.continuation is None else _without_repeats(turn.continuation, turn.head, before)
    if not added and turn.refusal:
        raise Rejected(turn.refusal, code="session_chat_unsupported", param="messages")
    if not added:
        raise Rejected("The turn adds nothing to the session.", param="prompt")
    return added


def _without_repeats(continuation: list[int], head: int, before: list[int]) -> list[int]:
    """Leave out of the first ``head`` tokens those that ``before`` ends with already."""
    for count in range(min(head, len(before)), 0, -1):
        if before[-count:] == continuation[:count]:
            return continuation[count:]
    return continuation


def _busy() -> Rejected:
    return _conflict("session_busy", "A turn of this session runs or waits; the next one must wait for its end.")


def _conflict(code: str, text: str) -> Rejected:
    return Rejected(text, status=409, kind="conflict_error", code=code, should_retry=False)
