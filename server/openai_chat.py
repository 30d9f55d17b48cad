"""POST /v1/chat/completions: messages in, one message per choice out."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.tokenizer_mgr.answer import Order

from . import fields
from .chat_prompt import chat_prompt
from .chat_shape import ChatShape
from .fields import ChatBody
from .generation import Api, Work, generate
from .state import AppState


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one chat completion."""
        return await generate(request, self.state, Api(ChatBody, fields.CHAT_UNSUPPORTED, prepare))


async def prepare(state: AppState, body: ChatBody, request_id: str) -> Work:
    """What a chat request comes to. Raises Rejected."""
    reader = state.prompts
    text = fields.text_params(body)
    logprobs = _num_logprobs(body)
    # Every field is looked at once before the costly part, and again with the true limit after it.
    fields.sampling_params(body, reader, max_tokens=2**31, logprobs=logprobs)
    prompt = await reader.chat(chat_prompt(body))
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    max_tokens = reader.max_tokens(len(prompt), wanted)
    order = Order(
        prompts=[prompt],
        sampling=[fields.sampling_params(body, reader, max_tokens=max_tokens, logprobs=logprobs)],
        text=text,
        n=body.n or 1,
        priority=body.priority or 0,
        namespace=fields.namespace(body),
    )
    return Work(order, ChatShape(request_id, state.model_name, body, order))


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise Rejected("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
