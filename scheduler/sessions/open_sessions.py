"""The open sessions of a scheduler: lookup by owner and id, idle timeouts, and a record of closed sessions."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from ebbtide.errors import Rejected

from .session import Session, SessionLimits

MAX_TOMBSTONES = 10_000


class OpenSessions:
    """Holds all open sessions. A closed session is remembered for ``timeout_s``, so that requests for it get 410.

    The current time is the argument of the last call of ``expire``.
    """

    def __init__(self, limits: SessionLimits, on_close: Callable[[Session], None]) -> None:
        """on_close: called with each session that was closed or has expired."""
        self.now = 0.0  # seconds
        self._limits = limits
        self._on_close = on_close
        self._sessions: dict[tuple[str, str], Session] = {}  # by owner and id, in the order of opening
        self._deadlines: list[tuple[float, int, Session]] = []  # heap; each time is at or before the actual expiry time
        self._tombstones: OrderedDict[tuple[str, str], float] = OrderedDict()  # (owner, id) → expiry time
        self._serial = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Iterate over all open sessions, oldest first."""
        return iter(self._sessions.values())

    def __contains__(self, owned_id: tuple[str, str]) -> bool:
        return owned_id in self._sessions

    def last_opened(self, limit: int) -> Iterator[Session]:
        """Return the ``limit`` most recently opened sessions, newest first."""
        return islice(reversed(self._sessions.values()), limit)

    def exceeded_quota(self, owner: str) -> str:
        """Return the reason why ``owner`` cannot open another session; "" if it can."""
        limits = self._limits
        if len(self._sessions) >= limits.max_sessions:
            return f"No more than {limits.max_sessions} sessions may be open (--max-sessions)."
        if limits.max_per_owner is not None and sum(o == owner for o, _ in self._sessions) >= limits.max_per_owner:
            return f"An API key may have at most {limits.max_per_owner} open sessions (--max-sessions-per-key)."
        return ""

    def open(self, owned_id: tuple[str, str], timeout_s: float, *, streaming: bool) -> Session:
        """Open a session with this owner and id, which must not be open."""
        self._serial += 1
        session = Session(f"{owned_id[1]}#{self._serial}", owned_id, streaming, timeout_s, self.now)
        self._sessions[owned_id] = session
        self._tombstones.pop(owned_id, None)
        self._schedule_expiry(session, session.deadline_s)
        return session

    def close(self, owned_id: tuple[str, str]) -> None:
        """Close the session with this owner and id if it is open."""
        session = self._sessions.pop(owned_id, None)
        if session is None:
            return
        self._tombstones[owned_id] = self.now + self._limits.timeout_s
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)
        self._on_close(session)

    def expire(self, now: float) -> None:
        """Close the sessions without an open turn whose idle timeout has passed. Forget old closed sessions."""
        self.now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, session = heapq.heappop(self._deadlines)
            if self._sessions.get(session.owned_id) is not session:
                continue
            if session.deadline_s <= now and not session.open_turns:
                self.close(session.owned_id)
            else:
                self._schedule_expiry(session, max(session.deadline_s, now + 1.0))
        while self._tombstones and next(iter(self._tombstones.values())) <= now:
            self._tombstones.popitem(last=False)

    def find(self, session_id: str, owner: str) -> Session:
        """Return an open session. Raises Rejected, with status 410 if it was closed recently, otherwise with 404."""
        session = self._sessions.get((owner, session_id))
        if session is not None:
            return session
        if (owner, session_id) in self._tombstones:
            text = f"The session {session_id[:100]!r} was closed or has expired."
            raise Rejected(text, status=410, kind="not_found_error", code="session_closed", param="session_id")
        text = f"The session {session_id[:100]!r} does not exist."
        raise Rejected(text, status=404, kind="not_found_error", code="session_not_found", param="session_id")

    def _schedule_expiry(self, session: Session, when_s: float) -> None:
        self._serial += 1
        heapq.heappush(self._deadlines, (when_s, self._serial, session))
