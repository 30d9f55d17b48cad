"""POST /v1/responses: generates output items from input items.

Responses are not stored, so requests that refer to an earlier response are refused.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected

from ...state import AppState
from ..chat.prepared_chat import prepare_chat, tools_named
from ..generation import Prepared, RouteSpec
from ..param_names import params_named
from .responses_request import PARAM_NAMES, UNSUPPORTED, ResponsesBody, chat_body, check_stateless, offered_tools
from .responses_response import ResponsesResponseBuilder, response_head


async def stored(request: Request) -> Response:
    """Always answer 404, because responses are not stored."""
    name = request.path_params["response_id"][:200]
    raise Rejected(
        f"The response {name!r} does not exist: this server stores no responses. To end a running request,"
        " close its connection or use /abort_request.",
        status=404,
        kind="not_found_error",
        code="response_not_found",
        param="response_id",
    )


async def prepare(state: AppState, body: ResponsesBody, request_id: str) -> Prepared:
    """Validate and tokenize a request. Raises Rejected if a field is invalid or the prompt is too long."""
    check_stateless(body)
    offered = offered_tools(body)
    state.left_out_tools.report(sorted(offered.left_out))
    with params_named(PARAM_NAMES), tools_named(offered.paths):
        chat = await prepare_chat(state, chat_body(body, offered), clamp=state.clamps_all)
    head = response_head(request_id, state.model_name, body)
    return chat.request, ResponsesResponseBuilder(head, chat, offered, shows_logprobs=body.shows_logprobs)


RESPONSES = RouteSpec("Answer one request of the responses API.", ResponsesBody, UNSUPPORTED, prepare)
