"""Opens, continues, branches, lists, closes and expires sessions.

The controller owns the tokens of sessions; ``SessionKvStore`` stores the K/V.

A turn is either rejected before any state changes, or it holds a lease until it ends. If the turn ends normally, its
tokens are committed; if it is aborted, the session stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ebbtide.errors import Rejected
from ebbtide.messages import (
    FULL_POOL,
    CloseSessionReq,
    GenerateReq,
    ListSessionsReq,
    OpenSessionReq,
    Reply,
    RunnerInfo,
    SessionInfo,
    SessionTurn,
)

from ..request import Request
from .open_sessions import OpenSessions
from .session import CommittedTurn, Lease, Session, SessionKvStore, SessionLimits
from .session_turns import append_turn, branch_turn, remove_descendants

LONGEST_TIMEOUT_S = 86_400.0  # the longest timeout that a client may request
TREE_CONTEXTS = 64  # maximum number of tokens of a plain session, as a multiple of the context length

FitCheck = Callable[[int, int], str]


class SessionController:
    """Holds all sessions of one scheduler."""

    def __init__(self, limits: SessionLimits, kv: SessionKvStore | None, info: RunnerInfo, misfit: FitCheck) -> None:
        """
        kv: the K/V of streaming sessions; None if streaming sessions are off.
        misfit: called with (prompt_len, max_tokens); returns why such a request can never run, or "" if it can run.
        """
        self._limits = limits
        self._kv_store = kv
        self._context_length = info.context_length
        self._page_size = info.page_size
        self._pool_tokens = info.num_pages * info.page_size
        self._misfit = misfit
        self._sessions = OpenSessions(limits, self._closed)
        self._leases: dict[str, Lease] = {}  # by rid

    @property
    def num_open(self) -> int:
        """Number of open sessions of both kinds."""
        return len(self._sessions)

    @property
    def num_streaming(self) -> int:
        """Number of open streaming sessions."""
        return sum(session.streaming for session in self._sessions)

    @property
    def num_leases(self) -> int:
        """Number of open turns."""
        return len(self._leases)

    def expire_sessions(self, now: float) -> None:
        """Close the sessions whose idle timeout has passed. Forget old closed sessions."""
        self._sessions.expire(now)

    def handle_session_req(self, message: OpenSessionReq | CloseSessionReq | ListSessionsReq) -> Reply:
        """Open, close or list sessions."""
        match message:
            case OpenSessionReq():
                return self._open(message)
            case CloseSessionReq():
                return self._close(message)
            case ListSessionsReq():
                return self._list(message)

    def _open(self, message: OpenSessionReq) -> Reply:
        if message.streaming and self._kv_store is None:
            text = "Streaming sessions are off: start the server with --enable-streaming-session."
            return Reply(message.call, 400, "streaming_sessions_off", text)
        owned_id = (message.owner, message.session_id)
        if owned_id in self._sessions:
            return Reply(message.call, 409, "session_exists", "A session with this id is already open.")
        exceeded = self._sessions.exceeded_quota(message.owner)
        if exceeded:
            return Reply(message.call, 429, "too_many_sessions", exceeded)
        timeout_s = self._limits.timeout_s if message.timeout_s is None else message.timeout_s
        max_timeout_s = max(LONGEST_TIMEOUT_S, self._limits.timeout_s)
        if timeout_s > max_timeout_s:
            text = f"'timeout' may be at most {max_timeout_s:.0f} seconds."
            return Reply(message.call, 400, "invalid_value", text)
        session = self._sessions.open(owned_id, timeout_s, streaming=message.streaming)
        return Reply(message.call, sessions=[self._describe(session)])

    def _close(self, message: CloseSessionReq) -> Reply:
        """Close the session if it is open. An open turn continues to run but will not be committed."""
        self._sessions.close((message.owner, message.session_id))
        return Reply(message.call)

    def _list(self, message: ListSessionsReq) -> Reply:
        """Return one session, or all sessions of an owner if the message has no session id."""
        if message.session_id:
            try:
                return Reply(
                    message.call, sessions=[self._describe(self._sessions.find(message.session_id, message.owner))]
                )
            except Rejected as error:
                return Reply(message.call, error.status, error.code, error.message)
        sessions = [session for session in self._sessions if session.owned_id[0] == message.owner]
        return Reply(message.call, sessions=[self._describe(session) for session in sessions])

    def last_opened(self, limit: int) -> list[SessionInfo]:
        """Return the ``limit`` most recently opened sessions across all owners, newest first."""
        return [self._describe(session) for session in self._sessions.last_opened(limit)]

    def accept_turn(self, message: GenerateReq) -> GenerateReq:
        """Create the lease of a turn. Return the turn as an ordinary request with its full context as the prompt.

        If this raises Rejected, the session is unchanged.
        """
        turn = message.session
        assert turn is not None
        if len(message.rids) != 1:
            raise Rejected("A session turn has exactly one choice: n must be 1.", param="n")
        session = self._sessions.find(turn.session_id, turn.owner)
        rid = message.rids[0]
        if session.streaming:
            lease, prompt = append_turn(session, turn, rid, message.prompt)
        else:
            lease, prompt = branch_turn(session, turn, rid, message.prompt)
            if lease.parent is not None or not lease.replace:  # otherwise the turn replaces all stored tokens
                self._check_size(session, len(prompt) - lease.keep)
        message = self._fitted(message, prompt, turn)
        if lease.named:
            session.names.add(lease.name)
        session.open_turns[rid] = lease
        session.last_rid = ""
        self._leases[rid] = lease
        if session.streaming and self._kv_store is not None:
            self._kv_store.begin_turn(session.key, rid)
        return message

    def ended(self, req: Request, *, finished: bool) -> None:
        """See ``EndListener``. Commits a turn that finished normally, and discards a turn that was aborted."""
        lease = self._leases.pop(req.rid, None)
        if lease is None:
            return
        session = lease.session
        del session.open_turns[req.rid]
        session.last_active_s = self._sessions.now
        if session.streaming and self._kv_store is not None:
            self._kv_store.end_turn(req.rid)
        if not finished:
            if lease.named:
                session.names.discard(lease.name)
            return
        session.num_turns += 1
        session.last_rid, session.last_input_len = req.rid, req.prompt_len
        tokens = _committed_tokens(req, lease)
        if not session.streaming:
            _commit_branch(lease, tokens, req.prompt_len)
            return
        session.tokens = tokens
        if len(tokens) < len(req.known) and self._kv_store is not None:
            self._kv_store.truncate(session.key, len(tokens))

    def truncate_last_turn(self, rid: str, num_outputs: int) -> None:
        """Truncate a committed turn to ``num_outputs`` output tokens. Called if a stop string was found late.

        Has no effect once the session has accepted another turn. Scans all sessions, which is acceptable because this
        is rare.
        """
        for session in self._sessions:
            if session.last_rid == rid:
                end = session.last_input_len + num_outputs
                if session.streaming and self._kv_store is not None:
                    del session.tokens[end:]
                    self._kv_store.truncate(session.key, end)
                elif session.turns:
                    turn = next(reversed(session.turns.values()))
                    del turn.tokens[end - turn.keep :]

    def _check_size(self, session: Session, num_new: int) -> None:
        limit = TREE_CONTEXTS * self._context_length
        if session.num_tokens + num_new > limit:
            text = (
                f"The session stores {session.num_tokens} tokens and this turn adds {num_new}, but the limit is"
                f" {limit}. Close the session and open a new one."
            )
            raise Rejected(text, status=429, kind="rate_limit_error", code="session_full", should_retry=False)

    def _fitted(self, message: GenerateReq, prompt: list[int], turn: SessionTurn) -> GenerateReq:
        """Return ``message`` with the full prompt of the turn.

        Raises Rejected if prompt and completion exceed the context length or do not fit into the KV pool.
        """
        rest = self._context_length - len(prompt)
        wanted = message.sampling.max_tokens
        if rest < 1 or (wanted > rest and not turn.context_limit):
            asked = "" if turn.context_limit else f", and {wanted} for the completion"
            raise _too_long(
                f"This model's maximum context length is {self._context_length} tokens, but the session has"
                f" {len(prompt)} tokens with this turn{asked}."
            )
        if turn.context_limit:
            # The K/V of the last output token is never written.
            rest = min(rest, max(self._pool_tokens - len(prompt) + 1, 1))
        sampling = replace(message.sampling, max_tokens=min(wanted, rest))
        misfit = self._misfit(len(prompt), sampling.max_tokens)
        if misfit:
            raise _too_long(misfit)
        return replace(message, prompt=prompt, sampling=sampling, session=None)

    def _closed(self, session: Session) -> None:
        if session.streaming and self._kv_store is not None:
            self._kv_store.close(session.key)

    def _describe(self, session: Session) -> SessionInfo:
        pages = self._kv_store.held_pages(session.key) if session.streaming and self._kv_store is not None else {}
        held = {pool: count * self._page_size for pool, count in pages.items()}
        state = "running" if session.open_turns else "warm" if any(held.values()) else "cold"
        return SessionInfo(
            session_id=session.owned_id[1],
            streaming=session.streaming,
            state=state,
            num_turns=session.num_turns,
            num_tokens=session.num_tokens,
            held_tokens=held.get(FULL_POOL, 0),
            idle_s=0.0 if session.open_turns else max(self._sessions.now - session.last_active_s, 0.0),
            timeout_s=session.timeout_s,
            owner=session.owned_id[0],
            held_in_pools=held,
        )


def _commit_branch(lease: Lease, tokens: list[int], input_len: int) -> None:
    """Add a turn of a plain session. tokens: its whole context."""
    session = lease.session
    if lease.replace:
        remove_descendants(session, lease.parent)
    own = tokens[lease.keep :]
    session.turns[lease.name] = CommittedTurn(lease.name, lease.parent, lease.keep, own, input_len)
    if lease.named:
        session.names.add(lease.name)  # remove_descendants may have removed the name


def _committed_tokens(req: Request, lease: Lease) -> list[int]:
    """Return the tokens to commit: the context from which the next turn continues.

    A final stop token that was not shown to the client is dropped, unless the chat template ends answers with it.
    """
    last = req.known[-1:]
    stopped = req.num_outputs > req.sampling.min_tokens and last[0] in req.stop_ids
    return (
        req.known[:-1] if stopped and last[0] not in req.text.shown_stop_ids and last != lease.answer_end else req.known
    )


def _too_long(text: str) -> Rejected:
    return Rejected(text, code="context_length_exceeded")
