"""POST /tokenize and /detokenize, GET /tokenizer_info.

The routes run in the front process and do not use the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ebbtide.errors import Rejected

from ..api.chat.chat_prompt import chat_prompt, num_messages
from ..api.chat.chat_request import ChatBody, ChatMessage
from ..api.neutral import body_of, read_as
from ..api.unsupported import refuse_unsupported
from ..http.off_loop import LARGE_BYTES, coroutine_in_thread
from ..http.streaming import as_json
from ..http.strict_json import read_json
from ..parsers.tool_fields import Tool, tool_options
from ..state import AppState

MAX_TEXTS = 1024
UNSUPPORTED = ("chat_template",)
CHAT_ONLY = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a string, several strings, or chat messages."""

    model: str | None = None
    prompt: str | Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)] | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize: token ids, or lists of token ids."""

    tokens: list[Any]
    model: str | None = None
    skip_special_tokens: bool | None = None


@dataclass(frozen=True, slots=True)
class TokenizeRoutes:
    """The routes and the state they use."""

    state: AppState

    async def tokenize(self, request: Request) -> Response:
        """Convert a string, several strings or chat messages to token ids."""
        body = await read_json(request, _tokenize_body)
        self.state.check_model(body.model)
        return await _answer(request, lambda: self._tokenized(body))

    async def detokenize(self, request: Request) -> Response:
        """Convert token ids to text. An incomplete character becomes U+FFFD."""
        body = await read_as(request, DetokenizeBody)
        self.state.check_model(body.model)
        return await _answer(request, lambda: self._detokenized(body))

    async def _tokenized(self, body: TokenizeBody) -> bytes:
        listed = await self._tokens(body)
        reply: dict[str, Any] = {
            "tokens": listed,
            "count": [len(ids) for ids in listed],
            "max_model_len": self.state.info.context_length,
        }
        if body.return_token_strs:
            reply["token_strs"] = [self.state.prompts.token_texts(ids) for ids in listed]
        if not isinstance(body.prompt, list):
            reply = {key: value[0] if isinstance(value, list) else value for key, value in reply.items()}
        return _as_json(reply)

    async def _detokenized(self, body: DetokenizeBody) -> bytes:
        is_batch = bool(body.tokens) and all(isinstance(entry, list) for entry in body.tokens)
        listed = body.tokens if is_batch else [body.tokens]
        if len(listed) > MAX_TEXTS:
            raise Rejected(f"'tokens' has {len(listed)} lists; the limit is {MAX_TEXTS}.", param="tokens")
        checked = [self.state.prompts.checked_ids(ids, "tokens") for ids in listed]
        skip = body.skip_special_tokens is not False
        texts = [await self.state.prompts.text_of(ids, skip_special_tokens=skip) for ids in checked]
        text = texts if is_batch else texts[0]
        return _as_json({"text": text, "prompt": text})

    async def info(self, _: Request) -> Response:
        """Show the tokenizer's special tokens and the chat template, for clients that render chats themselves."""
        return JSONResponse({**self.state.prompts.tokenizer_info, "model_max_length": self.state.info.context_length})

    async def _tokens(self, body: TokenizeBody) -> list[list[int]]:
        reader = self.state.prompts
        if (body.prompt is None) == (body.messages is None):
            raise Rejected("Exactly one of 'prompt' and 'messages' must be set.", param="prompt")
        if body.messages is not None:
            if body.add_special_tokens:
                raise Rejected(
                    "'add_special_tokens' cannot be used with 'messages': the chat template adds them.",
                    param="add_special_tokens",
                )
            chat = _as_chat(body, body.messages)
            reader.check_num_messages(num_messages(chat))
            return [await reader.chat(chat_prompt(chat, tool_options(chat), self.state.profile))]
        for name in CHAT_ONLY:
            if getattr(body, name):
                raise Rejected(f"'{name}' can only be used with 'messages'.", param=name)
        texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
        marks = body.add_special_tokens is not False
        return [await reader.tokens_of(text, add_special_tokens=marks) for text in texts]


async def _answer(request: Request, build: Callable[[], Coroutine[Any, Any, bytes]]) -> Response:
    """Return a response with the JSON that ``build`` returns. If the request is large, ``build`` runs in a thread."""
    is_large = len(await request.body()) > LARGE_BYTES
    return Response(await (coroutine_in_thread(build) if is_large else build()), media_type="application/json")


def _as_json(reply: dict[str, Any]) -> bytes:
    """Encode the reply entry by entry: encoding holds the GIL, and a reply may have millions of tokens."""
    return b"{" + b",".join([as_json(key) + b":" + _value_as_json(value) for key, value in reply.items()]) + b"}"


def _value_as_json(value: Any) -> bytes:
    if not isinstance(value, list):
        return as_json(value)
    return b"[" + b",".join([as_json(entry) for entry in value]) + b"]"


def _tokenize_body(raw: dict[str, Any]) -> TokenizeBody:
    refuse_unsupported(raw, UNSUPPORTED)
    return body_of(raw, TokenizeBody)


def _as_chat(body: TokenizeBody, messages: list[ChatMessage]) -> ChatBody:
    return ChatBody(
        messages=messages,
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
