"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's messages API."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...http.off_loop import LARGE_BYTES, coroutine_in_thread
from ...state import AppState
from ..chat.chat_request import ChatBody
from ..chat.prepared_chat import num_prompt_tokens, prepare_chat, tools_named
from ..generation import Prepared, RouteSpec
from ..neutral import read_as
from ..param_names import params_named
from .client_tools import OfferedTools
from .messages_request import (
    PARAM_NAMES,
    UNSUPPORTED,
    CountTokensBody,
    MessagesBody,
    chat_body,
    check_stateless,
    prompt_fields,
)
from .messages_response import MessagesResponseBuilder


@dataclass(frozen=True, slots=True)
class CountTokensRoute:
    """The route and the state that it uses."""

    state: AppState

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of the prompt. The prompt may exceed the context length, because nothing is generated."""
        body = await read_as(request, CountTokensBody)
        self.state.check_model(body.model)
        check_stateless(body)
        num_bytes = len(await request.body())
        count = await (coroutine_in_thread(lambda: self._count(body)) if num_bytes > LARGE_BYTES else self._count(body))
        return JSONResponse({"input_tokens": count})

    async def _count(self, body: CountTokensBody) -> int:
        offered = OfferedTools(body.tools)
        with params_named(PARAM_NAMES), tools_named(offered.paths):
            return await num_prompt_tokens(self.state, ChatBody(**prompt_fields(body, offered)))


async def prepare(state: AppState, body: MessagesBody, request_id: str) -> Prepared:
    """Validate and tokenize a request. Raises Rejected if a field is invalid or the prompt is too long."""
    check_stateless(body)
    offered = OfferedTools(body.tools)
    state.left_out_tools.report(sorted(offered.left_out))
    clamp = state.config.clamp_max_tokens != "none"
    with params_named(PARAM_NAMES), tools_named(offered.paths):
        chat = await prepare_chat(state, chat_body(body, offered), clamp=clamp)
    return chat.request, MessagesResponseBuilder(request_id, state.model_name, chat)


MESSAGES = RouteSpec("Answer one request of Anthropic's messages API.", MessagesBody, UNSUPPORTED, prepare)
