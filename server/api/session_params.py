"""Converts the session fields of a request to the session turn that is sent to the scheduler.

The module does not depend on routes.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, structs

from ebbtide.errors import Rejected
from ebbtide.messages import SessionTurn
from ebbtide.tokenizer_mgr.prompts import PromptReader

TurnName = Annotated[str, Meta(min_length=1, max_length=128)]


class SessionParams(msgspec.Struct):
    """A session in SGLang's format. All fields except ``id`` apply to plain sessions only.

    Attributes:
        id: id of the session
        rid: name of the earlier turn from which this turn branches
        offset: number of tokens to keep of that turn's context
    """

    id: str
    rid: TurnName | None = None
    offset: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class SessionFields(Protocol):
    """The session fields that the bodies of all generating routes have."""

    @property
    def session_id(self) -> str | None: ...

    @property
    def session_params(self) -> SessionParams | None: ...


def session_turn(body: SessionFields) -> SessionTurn | None:
    """Return the session turn, without its prompt; None if the request names no session.

    Raises Rejected if the request has both ``session_id`` and ``session_params``.
    """
    params = body.session_params
    if body.session_id is not None and params is not None:
        raise Rejected("'session_id' and 'session_params' are mutually exclusive.", param="session_params")
    if body.session_id is not None:
        return SessionTurn(body.session_id)
    if params is None:
        return None
    return SessionTurn(
        params.id,
        parent=params.rid or "",
        offset=params.offset or -1,  # SGLang's clients send 0 for "no offset"
        replace=bool(params.replace),
        drop_previous_output=bool(params.drop_previous_output),
    )


async def raw_turn(
    body: SessionFields, reader: PromptReader, prompts: list[str | list[Any]], *, n: int, max_tokens: int | None
) -> SessionTurn | None:
    """Return the session turn of a request with raw prompts; None if the request names no session.

    Raises Rejected if the turn's fields are invalid, or if there are several prompts or choices.
    """
    session = session_turn(body)
    if session is None:
        return None
    check_one_choice(len(prompts), n)
    continuation = await reader.continuation(prompts[0])
    return structs.replace(session, continuation=continuation, context_limit=max_tokens is None)


def check_one_choice(num_prompts: int, n: int) -> None:
    """Raise Rejected if a session turn has several prompts or choices, because a session has only one next turn."""
    if num_prompts != 1:
        raise Rejected("A session turn must have exactly one prompt.", param="prompt")
    if n != 1:
        raise Rejected("A session turn must have exactly one choice: 'n' must be 1.", param="n")
