"""POST /v1/chat/completions: messages in, one message per choice out."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ...state import AppState
from ..chat.chat_request import ChatBody
from ..chat.prepared_chat import prepare_chat
from ..generation import Prepared, RouteSpec, generate
from ..sampling_params import check_stream
from ..unsupported import UNSUPPORTED
from .chat_response import ChatResponseBuilder


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """The route, bound to the application's state."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one chat completion."""
        return await generate(request, self.state, RouteSpec(ChatBody, (*UNSUPPORTED, "audio", "echo"), prepare))


async def prepare(state: AppState, body: ChatBody, request_id: str) -> Prepared:
    """Make a chat request ready for the scheduler. Raises Rejected."""
    check_stream(body)
    chat = await prepare_chat(state, body)
    return chat.request, ChatResponseBuilder(request_id, state.model_name, body, chat)
