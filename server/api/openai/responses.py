"""POST /v1/responses: items in, items out. Nothing is stored, so whatever asks for an earlier response is refused."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected

from ...http.streaming import Framing
from ...state import AppState
from ..chat.chat_mapping import order_as_chat
from ..generation import RouteSpec, Work, generate
from . import responses_request as responses_fields
from .responses_request import ResponsesBody, chat_fields, check_stateless
from .responses_response import ResponsesResponseBuilder, response_head


@dataclass(frozen=True, slots=True)
class ResponsesRoutes:
    """The routes, bound to what they work with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one request of the responses API."""
        return await generate(request, self.state, RouteSpec(ResponsesBody, responses_fields.UNSUPPORTED, prepare))

    async def stored(self, request: Request) -> Response:
        """Always 404: nothing is stored here."""
        name = request.path_params["response_id"][:200]
        raise Rejected(
            f"The response {name!r} is not here: this server stores none. A request that is running ends when its"
            " client leaves, or through /abort_request.",
            status=404,
            kind="not_found_error",
            code="response_not_found",
            param="response_id",
        )


async def prepare(state: AppState, body: ResponsesBody, request_id: str) -> Work:
    """What a request comes to. Raises Rejected."""
    check_stateless(body)
    chat = await order_as_chat(state, chat_fields(body), responses_fields.NAMES)
    shape = ResponsesResponseBuilder(response_head(request_id, state.model_name, body), body, chat)
    return Work(chat.order, shape, Framing(named=True, end_mark=b"", failure=shape.failure))
