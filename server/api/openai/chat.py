"""POST /v1/chat/completions: generates the next message of a conversation, once per choice."""

from __future__ import annotations

from ...state import AppState
from ..chat.chat_request import ChatBody
from ..chat.prepared_chat import prepare_chat
from ..generation import Prepared, RouteSpec
from ..sampling_params import check_stream
from ..unsupported import UNSUPPORTED
from .chat_response import ChatResponseBuilder

# The template writes the BOS token, so the tokenizer must not add another one.
UNSUPPORTED_IN_CHATS = (*UNSUPPORTED, "audio", "echo", "add_special_tokens")


async def prepare(state: AppState, body: ChatBody, request_id: str) -> Prepared:
    """Validate and tokenize a chat request. Raises Rejected if a field is invalid or the prompt is too long."""
    check_stream(body)
    chat = await prepare_chat(state, body, clamp=state.clamps_all)
    return chat.request, ChatResponseBuilder(request_id, state.model_name, body, chat)


CHAT_COMPLETIONS = RouteSpec("Answer one chat completion.", ChatBody, UNSUPPORTED_IN_CHATS, prepare)
