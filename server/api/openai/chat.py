"""POST /v1/chat/completions: messages in, one message per choice out."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ...state import AppState
from .. import fields
from ..chat.chat_request import ChatBody
from ..chat.prepared_chat import prepare_chat
from ..generation import RouteSpec, Work, generate
from .chat_response import ChatResponseBuilder, chat_head


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one chat completion."""
        return await generate(request, self.state, RouteSpec(ChatBody, fields.CHAT_UNSUPPORTED, prepare))


async def prepare(state: AppState, body: ChatBody, request_id: str) -> Work:
    """What a chat request comes to. Raises Rejected."""
    fields.check_stream(body)
    chat = await prepare_chat(state, body)
    return Work(
        chat.order,
        ChatResponseBuilder(chat_head(request_id, state.model_name), body, chat.order, chat.parser_config, chat.wishes),
    )
