"""Sessions: open, append, commit, roll back, branch, close, expire. Owns their tokens; knows K/V only by name.

A turn is refused before any state changes, or it holds a lease until it ends: a good end commits its tokens, any other
end, a retraction included, leaves the session as it was. Time is what the last ``tick`` said.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from msgspec.structs import replace

from ebbtide.errors import Rejected
from ebbtide.messages import (
    CloseSessionReq,
    GenerateReq,
    ListSessionsReq,
    OpenSessionReq,
    Reply,
    SessionInfo,
    SessionTurn,
)

from ..request import Request
from .session import Lease, Session, SessionLimits, Slots, Turn
from .session_turns import append, branch, cut_off

MAX_TOMBSTONES = 10_000
LONGEST_TIMEOUT_S = 86_400.0  # a client may not keep a place for ever
TREE_CONTEXTS = 64  # a plain session stores at most so many contexts' worth of tokens


FitCheck = Callable[[int, int], str]


class SessionController:
    """All sessions of one scheduler.

    slots: None when streaming sessions are off. misfit: (prompt tokens, output tokens) → why that can never run, or "".
    """

    def __init__(
        self, limits: SessionLimits, slots: Slots | None, context_length: int, page_size: int, misfit: FitCheck
    ) -> None:
        self._limits = limits
        self._slots = slots
        self._context_length = context_length
        self._page_size = page_size
        self._misfit = misfit
        self._sessions: dict[tuple[str, str], Session] = {}  # by owner and id
        self._leases: dict[str, Lease] = {}
        self._deadlines: list[tuple[float, int, Session]] = []  # lazy: an entry may be too early, never too late
        self._tombstones: OrderedDict[tuple[str, str], float] = OrderedDict()  # (owner, id) → until when
        self._serial = 0
        self._now = 0.0

    @property
    def num_open(self) -> int:
        """Open sessions of both kinds."""
        return len(self._sessions)

    @property
    def num_streaming(self) -> int:
        """Open streaming sessions."""
        return sum(session.streaming for session in self._sessions.values())

    @property
    def num_leases(self) -> int:
        """Turns that run or wait."""
        return len(self._leases)

    def tick(self, now: float) -> None:
        """Let time pass: close sessions that were idle too long, forget old tombstones."""
        self._now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, session = heapq.heappop(self._deadlines)
            if self._sessions.get(session.owned_id) is not session:
                continue
            if session.deadline_s <= now and not session.open_turns:
                self._bury(session)
            else:
                self._watch(session, max(session.deadline_s, now + 1.0))
        while self._tombstones and next(iter(self._tombstones.values())) <= now:
            self._tombstones.popitem(last=False)

    def answer(self, message: OpenSessionReq | CloseSessionReq | ListSessionsReq) -> Reply:
        """Open, close or describe."""
        match message:
            case OpenSessionReq():
                return self._open(message)
            case CloseSessionReq():
                return self._close(message)
            case ListSessionsReq():
                return self._list(message)

    def _open(self, message: OpenSessionReq) -> Reply:
        """A new session under the given id."""
        if message.streaming and self._slots is None:
            text = "Streaming sessions are off: start the server with --enable-streaming-session."
            return Reply(message.call, 400, "streaming_sessions_off", text)
        owned_id = (message.owner, message.session_id)
        if owned_id in self._sessions:
            return Reply(message.call, 409, "session_exists", "A session of this id is open.")
        full = self._quota(message.owner)
        if full:
            return Reply(message.call, 429, "too_many_sessions", full)
        timeout_s = self._limits.timeout_s if message.timeout_s is None else message.timeout_s
        most_s = max(LONGEST_TIMEOUT_S, self._limits.timeout_s)
        if timeout_s > most_s:
            text = f"'timeout' may be {most_s:.0f} seconds at most."
            return Reply(message.call, 400, "invalid_value", text)
        self._serial += 1
        session = Session(f"{message.session_id}#{self._serial}", owned_id, message.streaming, timeout_s, self._now)
        self._sessions[owned_id] = session
        self._tombstones.pop(owned_id, None)
        self._watch(session, session.deadline_s)
        return Reply(message.call, sessions=[self._describe(session)])

    def _quota(self, owner: str) -> str:
        """Why ``owner`` may not open another session; "" when he may."""
        limits = self._limits
        if len(self._sessions) >= limits.max_sessions:
            return f"No more than {limits.max_sessions} sessions may be open (--max-sessions)."
        if limits.max_per_owner is not None and sum(o == owner for o, _ in self._sessions) >= limits.max_per_owner:
            return f"One key may have {limits.max_per_owner} sessions open (--max-sessions-per-key)."
        return ""

    def _close(self, message: CloseSessionReq) -> Reply:
        """Close it, if it is open; a turn that runs or waits finishes detached."""
        session = self._sessions.get((message.owner, message.session_id))
        if session is not None:
            self._bury(session)
        return Reply(message.call)

    def _list(self, message: ListSessionsReq) -> Reply:
        """One session or all of an owner."""
        if message.session_id:
            try:
                return Reply(message.call, sessions=[self._describe(self._find(message.session_id, message.owner))])
            except Rejected as error:
                return Reply(message.call, error.status, error.code, error.message)
        mine = [session for session in self._sessions.values() if session.owned_id[0] == message.owner]
        return Reply(message.call, sessions=[self._describe(session) for session in mine])

    def begin(self, message: GenerateReq) -> GenerateReq:
        """The turn as an ordinary request with its whole context. Raises Rejected; the session is then as before."""
        turn = message.session
        assert turn is not None
        if len(message.rids) != 1:
            raise Rejected("A session's turn has one choice: n must be 1.", param="n")
        session = self._find(turn.session_id, turn.owner)
        rid = message.rids[0]
        if session.streaming:
            lease, prompt = append(session, turn, rid, message.prompt)
        else:
            lease, prompt = branch(session, turn, rid, message.prompt)
            if lease.parent is not None or not lease.replace:  # else all that is stored goes
                self._check_size(session, len(prompt) - lease.keep)
        message = self._fitted(message, prompt, turn)
        if lease.named:
            session.names.add(lease.name)
        session.open_turns[rid] = lease
        session.last_rid = ""
        self._leases[rid] = lease
        if session.streaming and self._slots is not None:
            self._slots.begin_turn(session.key, rid)
        return message

    def ended(self, req: Request, *, finished: bool) -> None:
        """A request is over. If it was a turn: commit it when it ended well, else forget it."""
        lease = self._leases.pop(req.rid, None)
        if lease is None:
            return
        session = lease.session
        del session.open_turns[req.rid]
        session.last_active_s = self._now
        if session.streaming and self._slots is not None:
            self._slots.end_turn(req.rid)
        if not finished:
            if lease.named:
                session.names.discard(lease.name)
            return
        session.num_turns += 1
        session.last_rid, session.last_input_len = req.rid, req.prompt_len
        tokens = _shown(req, lease)
        if session.streaming:
            session.tokens = tokens
        else:
            if lease.replace:
                cut_off(session, lease.parent)
            own = tokens[lease.keep :]
            session.turns[lease.name] = Turn(lease.name, lease.parent, lease.keep, own, req.prompt_len)
            if lease.named:
                session.names.add(lease.name)  # the cut has forgotten it with the others

    def cut_last_turn(self, session_rid: str, num_outputs: int) -> None:
        """A stop string was found in a turn that has ended: its outputs after ``num_outputs`` never happened.

        Of no effect once another turn has begun. Looks at all sessions, which is rare and cheap enough.
        """
        for session in self._sessions.values():
            if session.last_rid == session_rid:
                end = session.last_input_len + num_outputs
                if session.streaming and self._slots is not None:
                    del session.tokens[end:]
                    self._slots.truncate(session.key, end)
                elif session.turns:
                    turn = next(reversed(session.turns.values()))
                    del turn.tokens[end - turn.keep :]

    def _check_size(self, session: Session, num_new: int) -> None:
        if session.num_tokens + num_new > TREE_CONTEXTS * self._context_length:
            text = f"The session stores {session.num_tokens} tokens in its turns, which is as many as it may: close it."
            raise Rejected(text, status=429, kind="rate_limit_error", code="session_full", should_retry=False)

    def _fitted(self, message: GenerateReq, prompt: list[int], turn: SessionTurn) -> GenerateReq:
        """The request with its whole prompt. Raises Rejected when the session has grown too long for it."""
        rest = self._context_length - len(prompt)
        wanted = message.sampling.max_tokens
        if rest < 1 or (wanted > rest and not turn.context_limit):
            asked = "" if turn.context_limit else f" and {wanted} for the completion"
            raise _too_long(
                f"This model's maximum context length is {self._context_length} tokens, but the session has"
                f" {len(prompt)} with this turn{asked}."
            )
        sampling = replace(message.sampling, max_tokens=min(wanted, rest))
        misfit = self._misfit(len(prompt), sampling.max_tokens)
        if misfit:
            raise _too_long(misfit)
        return replace(message, prompt=prompt, sampling=sampling, session=None)

    def _find(self, session_id: str, owner: str) -> Session:
        session = self._sessions.get((owner, session_id))
        if session is not None:
            return session
        if (owner, session_id) in self._tombstones:
            text = f"The session {session_id[:100]!r} was closed or has expired."
            raise Rejected(text, status=410, kind="not_found_error", code="session_closed", param="session_id")
        text = f"There is no session {session_id[:100]!r}."
        raise Rejected(text, status=404, kind="not_found_error", code="session_not_found", param="session_id")

    def _bury(self, session: Session) -> None:
        del self._sessions[session.owned_id]
        self._tombstones[session.owned_id] = self._now + self._limits.timeout_s
        if len(self._tombstones) > MAX_TOMBSTONES:
            self._tombstones.popitem(last=False)
        if session.streaming and self._slots is not None:
            self._slots.close(session.key)

    def _watch(self, session: Session, when_s: float) -> None:
        self._serial += 1
        heapq.heappush(self._deadlines, (when_s, self._serial, session))

    def _describe(self, session: Session) -> SessionInfo:
        held = self._slots.held_pages(session.key) if session.streaming and self._slots is not None else 0
        state = "running" if session.open_turns else "warm" if held else "cold"
        return SessionInfo(
            session_id=session.owned_id[1],
            streaming=session.streaming,
            state=state,
            num_turns=session.num_turns,
            num_tokens=session.num_tokens,
            held_tokens=held * self._page_size,
            idle_s=0.0 if session.open_turns else max(self._now - session.last_active_s, 0.0),
            timeout_s=session.timeout_s,
        )


def _shown(req: Request, lease: Lease) -> list[int]:
    """The tokens that the next turn goes on from: a token that ended the answer and was not shown never happened.

    One that closes the answer in the chat's template stays.
    """
    last = req.known[-1:]
    ended_it = req.num_outputs > req.sampling.min_tokens and last[0] in req.stop_ids
    return (
        req.known[:-1] if ended_it and last[0] not in req.text.shown_stop_ids and last != lease.closing else req.known
    )


def _too_long(text: str) -> Rejected:
    return Rejected(text, code="context_length_exceeded")
