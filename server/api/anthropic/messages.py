"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's messages of blocks in, one message of blocks out."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected

from ...http.streaming import Framing
from ...http.strict_json import convert, read_object
from ...state import AppState
from ..chat.chat_mapping import num_prompt_tokens, order_as_chat
from ..generation import RouteSpec, Work, generate
from . import messages_request as anthropic_fields
from .errors import anthropic_error
from .messages_request import CountTokensBody, MessagesBody, chat_fields, prompt_fields
from .messages_response import Event, MessagesResponseBuilder


@dataclass(frozen=True, slots=True)
class MessagesRoutes:
    """The routes, bound to what they work with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one request of Anthropic's messages API."""
        return await generate(request, self.state, RouteSpec(MessagesBody, anthropic_fields.UNSUPPORTED, prepare))

    async def count_tokens(self, request: Request) -> Response:
        """How many tokens the prompt of such a request has. Nothing is generated, so it need not fit anywhere."""
        body = convert(await read_object(request), CountTokensBody)
        self.state.check_model(body.model)
        count = await num_prompt_tokens(self.state, prompt_fields(body), anthropic_fields.NAMES)
        return JSONResponse({"input_tokens": count})


async def prepare(state: AppState, body: MessagesBody, request_id: str) -> Work:
    """What a request comes to. Raises Rejected."""
    chat = await order_as_chat(state, chat_fields(body), anthropic_fields.NAMES)
    return Work(chat.order, MessagesResponseBuilder(request_id, state.model_name, chat), FRAMING)


def _failed(error: Rejected) -> list[Event]:
    return [anthropic_error(error)]


FRAMING = Framing(named=True, keep_alive=b'event: ping\ndata: {"type": "ping"}\n\n', end_mark=b"", failure=_failed)
