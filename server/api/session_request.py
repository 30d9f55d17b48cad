"""The session fields of a request that generates text, and what a turn is told from them. Knows no routes."""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from ebbtide.errors import Rejected
from ebbtide.messages import SessionTurn

TurnName = Annotated[str, Meta(min_length=1, max_length=128)]


class SessionParams(msgspec.Struct):
    """SGLang's form. rid: the earlier turn to go on from, in a plain session. offset: tokens to keep of its context."""

    id: str
    rid: TurnName | None = None
    offset: Annotated[int, Meta(ge=-1)] | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class SessionFields(Protocol):
    """What the bodies of all generating routes have."""

    @property
    def session_id(self) -> str | None:
        """Go on with this session."""

    @property
    def session_params(self) -> SessionParams | None:
        """The same with more to say."""


def session_turn(body: SessionFields, *, name: str = "") -> SessionTurn | None:
    """The session that a request goes on with, its prompt still left out; None without a session. Raises Rejected.

    name: what later turns may call this one.
    """
    params = body.session_params
    if body.session_id is not None and params is not None:
        raise Rejected("'session_id' and 'session_params' exclude each other.", param="session_params")
    if body.session_id is not None:
        return SessionTurn(body.session_id, turn=name)
    if params is None:
        return None
    return SessionTurn(
        params.id,
        turn=name,
        parent=params.rid or "",
        offset=params.offset or -1,  # SGLang's clients send 0 for "no offset"
        replace=bool(params.replace),
        drop_previous_output=bool(params.drop_previous_output),
    )


def check_one_choice(num_prompts: int, n: int) -> None:
    """Raises Rejected for a turn of several choices: a session has one next turn."""
    if num_prompts != 1:
        raise Rejected("A session's turn has one prompt.", param="prompt")
    if n != 1:
        raise Rejected("A session's turn has one choice: 'n' must be 1.", param="n")
