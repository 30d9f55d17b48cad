"""What every route that generates text does, in this order: read, check, prepare, submit, answer.

Knows no API's fields: a route brings its body type, and a function from a body to work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.response_stream import Delta

from ..http.middleware import assign_client_ids
from ..http.streaming import CHAT_FRAMING, ChunkWriter, EventStream, Framing, WholeReply
from ..http.strict_json import convert, read_object
from ..state import AppState
from . import fields


class GenerationBody(Protocol):
    """What the bodies of all routes have. names: ids by which the client may name it later. timeout: in seconds."""

    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool | None: ...

    @property
    def names(self) -> tuple[str | None, ...]: ...

    @property
    def timeout(self) -> float | None: ...


B = TypeVar("B", bound=GenerationBody)


class ResponseBuilder(ChunkWriter, Protocol):
    """One API's form of an answer, whole or in chunks."""

    def whole(self, deltas: list[Delta]) -> dict[str, Any] | list[Any]:
        """The answer of a request without stream."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a request comes to: generations to order, and the form in which they are answered."""

    order: PreparedRequest
    shape: ResponseBuilder
    framing: Framing = CHAT_FRAMING


@dataclass(frozen=True, slots=True)
class RouteSpec(Generic[B]):
    """What sets one route apart. unsupported: fields that are refused. prepare: raises Rejected for a bad request."""

    body: type[B]
    unsupported: tuple[str, ...]
    prepare: Callable[[AppState, B, str], Awaitable[Work]]


async def generate(request: Request, state: AppState, api: RouteSpec[B]) -> Response:
    """Answer one request. Everything that can be refused is refused before the scheduler hears of it."""
    received_s = state.manager.clock()
    state.liveness.require_ready()
    raw = await read_object(request)
    fields.refuse_unsupported(raw, api.unsupported)
    body = convert(raw, api.body)
    state.note_ignored(raw, (*api.body.__struct_fields__, *api.unsupported, *fields.CHECKED_APART))
    state.check_model(body.model)
    ids = assign_client_ids(request.scope, body.names)
    with state.expect(request, ids), state.metrics.count_refusals():
        work = await api.prepare(state, body, ids[0])
    answer = state.submit(replace(work.order, ids=ids, timeout_s=body.timeout), request, received_s)
    if body.stream:
        return EventStream(answer, work.shape, state.config.keep_alive_s, work.framing)
    return WholeReply(answer, work.shape.whole)


def stop_reason(delta: Delta, named_stops: frozenset[int]) -> str | int | None:
    """The stop string or the client's own stop token that ended a choice; None for the model's end of text."""
    return delta.matched if isinstance(delta.matched, str) or delta.matched in named_stops else None
