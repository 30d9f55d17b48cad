"""A world with sessions, and the expected output of a turn: that of the whole conversation in an ample pool."""

from __future__ import annotations

from ebbtide.messages import (
    AbortReq,
    CloseSessionReq,
    GenerateReq,
    ListSessionsReq,
    OpenSessionReq,
    Reply,
    SamplingParams,
    SessionInfo,
    SessionTurn,
)

from .world import Outcome, Shape, World, greedy, text


class SessionWorld(World):
    """Sends session requests like the front. ``ask`` returns the reply at once."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__(shape or Shape(sessions=True))
        self._calls = 0

    def ask(self, kind: type, session_id: str, **fields: object) -> Reply:
        """Send an open, close or list request and return the reply."""
        self._calls += 1
        call = f"call{self._calls}"
        self.send(kind(call=call, session_id=session_id, **fields))
        self.receive()
        self.read()
        return self.replies[call]

    def open(self, session_id: str, *, streaming: bool = True, **fields: object) -> Reply:
        """Open a session."""
        return self.ask(OpenSessionReq, session_id, streaming=streaming, **fields)

    def close(self, session_id: str, owner: str = "") -> Reply:
        """Close a session."""
        return self.ask(CloseSessionReq, session_id, owner=owner)

    def info(self, session_id: str, owner: str = "") -> SessionInfo:
        """Describe an open session."""
        (info,) = self.ask(ListSessionsReq, session_id, owner=owner).sessions
        return info

    def turn(
        self, session_id: str, rid: str, prompt: str, sampling: SamplingParams | None = None, **fields: object
    ) -> None:
        """Send a session's next turn."""
        turn = SessionTurn(session_id, **fields)  # type: ignore[arg-type]
        self.send(GenerateReq((rid,), text(prompt), sampling or greedy(8, ignore_eos=True), session=turn))

    def say(self, session_id: str, rid: str, prompt: str, sampling: SamplingParams | None = None) -> Outcome:
        """Run one turn to its end."""
        self.turn(session_id, rid, prompt, sampling)
        return self.run()[rid]

    def refusal(self, rid: str) -> tuple[int, str | None]:
        """Status and code of a rejected turn."""
        self.receive()
        self.read()
        (abort,) = self.outcomes[rid].aborts
        return abort.status, abort.code

    def abort(self, rid: str) -> None:
        """Abort the request, as after a client disconnect."""
        self.send(AbortReq(rid, "client"))


def alone(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The output of a prompt in an ample pool."""
    world = World(Shape(num_pages=4096))
    world.generate("r", prompt, sampling)
    return world.run()["r"].tokens
