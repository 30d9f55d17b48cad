"""The steps of every route that generates text: read, validate, prepare, submit, respond.

The module does not depend on the API: each route supplies its body type and a function that prepares the body.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.response_stream import Delta

from ..http.middleware import assign_client_ids
from ..http.off_loop import LARGE_BYTES, coroutine_in_thread
from ..http.streaming import ChunkWriter, CompleteReply, EventStream, Framing
from ..http.strict_json import read_json
from ..route import Route
from ..state import AppState
from ..tracing.scope import note_model
from .neutral import body_of
from .unsupported import CHECKED_APART, refuse_unsupported


class GenerationBody(Protocol):
    """The fields that the bodies of all generating routes have."""

    __struct_fields__: ClassVar[tuple[str, ...]]

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool | None: ...

    @property
    def names(self) -> tuple[str | None, ...]:
        """The ids by which the client may refer to the request later."""

    @property
    def timeout(self) -> float | None:
        """The time limit of the request in seconds."""


B = TypeVar("B", bound=GenerationBody)


class ResponseBuilder(ChunkWriter, Protocol):
    """Writes the response to one request in the format of its API, complete or in chunks."""

    @property
    def framing(self) -> Framing:
        """The event format in which the chunks of a stream are sent."""

    def whole(self, deltas: list[Delta]) -> dict[str, Any] | list[Any]:
        """Return the response to a non-streaming request."""


Prepared = tuple[PreparedRequest, ResponseBuilder]


@dataclass(frozen=True, slots=True)
class RouteSpec(Generic[B]):
    """The properties in which generating routes differ.

    Attributes:
        summary: description of the route in /openapi.json
        body: type of the request body
        unsupported: names of the fields that are refused
        prepare: validates and tokenizes a body; the last argument is the request's id. Raises Rejected if the body is
            invalid
    """

    summary: str
    body: type[B]
    unsupported: tuple[str, ...]
    prepare: Callable[[AppState, B, str], Coroutine[Any, Any, Prepared]]


def generation_route(path: str, state: AppState, spec: RouteSpec[B]) -> Route:
    """Create the route at ``path`` for ``spec``."""

    async def create(request: Request) -> Response:
        return await _generate(request, state, spec)

    create.__doc__ = spec.summary
    return Route("POST", path, create, spec.body, streams=True)


async def read_body(request: Request, state: AppState, spec: RouteSpec[B]) -> B:
    """Return the body of a request for the route ``spec``.

    Raises Rejected if the body is invalid or names another model.
    """
    body = await read_json(request, lambda raw: _checked(raw, state, spec))
    state.check_model(body.model)
    return body


async def _generate(request: Request, state: AppState, spec: RouteSpec[B]) -> Response:
    """Answer one request. The whole request is validated before any part is sent to the scheduler."""
    received_s = state.manager.clock()
    state.liveness.require_ready()
    body = await read_body(request, state, spec)
    note_model(request.scope, body.model)
    sender = state.sender(request, assign_client_ids(request.scope, body.names), body.timeout)
    streams, held = body.stream, [body]
    del body
    with state.manager.register(sender), state.metrics.count_refusals():
        prepared, builder = await prepare_off_loop(
            spec, state, held, sender.ids[0], num_bytes=len(await request.body())
        )
    stream = state.submit(prepared, sender, request, received_s)
    if streams:
        return EventStream(stream, builder, state.config.keep_alive_s, builder.framing)
    return CompleteReply(stream, builder.whole)


async def prepare_off_loop(
    spec: RouteSpec[B], state: AppState, held: list[B], request_id: str, *, num_bytes: int
) -> Prepared:
    """Prepare a request whose body has ``num_bytes`` bytes. If the body is large, this runs in a thread.

    held: a list with the body as its only entry. The body is removed from the list, so that it is freed in the thread:
        freeing 480,000 objects takes tens of milliseconds.
    """
    if num_bytes <= LARGE_BYTES:
        return await spec.prepare(state, held.pop(), request_id)
    home = state.for_a_thread()
    return await coroutine_in_thread(lambda: spec.prepare(home, held.pop(), request_id))


def _checked(raw: dict[str, Any], state: AppState, spec: RouteSpec[B]) -> B:
    """Convert the JSON of a request to the body type of ``spec``, and report ignored fields.

    Raises Rejected if a field has an invalid value, or if ``spec`` does not support it.
    """
    refuse_unsupported(raw, spec.unsupported)
    body = body_of(raw, spec.body)
    known = {*spec.body.__struct_fields__, *spec.unsupported, *CHECKED_APART}
    state.ignored_fields.report(name for name in raw if name not in known)
    return body


def stop_reason(delta: Delta, stop_token_ids: frozenset[int]) -> str | int | None:
    """Return the stop string, or the token of ``stop_token_ids``, that ended a choice. Returns None if the choice
    ended for another reason.
    """

    return delta.matched if isinstance(delta.matched, str) or delta.matched in stop_token_ids else None
