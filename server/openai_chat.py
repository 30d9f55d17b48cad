"""POST /v1/chat/completions: messages in, one message per choice out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.tokenizer import ChatPrompt
from ebbtide.tokenizer_mgr.answer import Delta, Order

from . import fields
from .fields import ChatBody, ChatMessage
from .layers import REQUEST_ID
from .logprobs import chat_logprobs
from .replies import EventStream, WholeReply
from .state import AppState
from .strict_json import convert, read_object
from .usage import UsageCount


@dataclass(frozen=True, slots=True)
class ChatRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one chat completion. Everything that can be refused is refused before the scheduler hears of it."""
        received_s = self.state.manager.clock()
        self.state.liveness.require_ready()
        raw = await read_object(request)
        fields.refuse_unsupported(raw, fields.CHAT_UNSUPPORTED)
        body = convert(raw, ChatBody)
        self.state.note_ignored(raw, (*ChatBody.__struct_fields__, *fields.CHAT_UNSUPPORTED, *fields.CHECKED_APART))
        self.state.check_model(body.model)
        fields.check_stream(body)
        order = await self._order(body)
        shape = _ChatShape(request.scope[REQUEST_ID], self.state.model_name, body, order)
        answer = self.state.submit(order, request.scope[REQUEST_ID], received_s)
        if body.stream:
            return EventStream(answer, shape, self.state.config.keep_alive_s)
        return WholeReply(answer, shape.whole)

    async def _order(self, body: ChatBody) -> Order:
        reader = self.state.prompts
        text = fields.text_params(body)
        logprobs = _num_logprobs(body)
        # Every field is looked at once before the costly part, and again with the true limit after it.
        fields.sampling_params(body, reader, max_tokens=2**31, logprobs=logprobs)
        prompt = await reader.chat(_chat_prompt(body))
        wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        max_tokens = reader.max_tokens(len(prompt), wanted)
        return Order(
            prompts=[prompt],
            sampling=[fields.sampling_params(body, reader, max_tokens=max_tokens, logprobs=logprobs)],
            text=text,
            n=body.n or 1,
            priority=fields.granted_priority(body, self.state.config.max_client_priority),
            namespace=fields.namespace(body),
        )


class _ChatShape:
    """One answer in the shape of the chat API, whole or in chunks."""

    def __init__(self, request_id: str, model: str, body: ChatBody, order: Order) -> None:
        self._head = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}
        self._n = order.n
        self._logprobs = bool(body.logprobs)
        self._usage = UsageCount([len(prompt) for prompt in order.prompts], order.n)
        options = body.stream_options
        self._final_usage = bool(options and options.include_usage)
        self._running_usage = self._final_usage and bool(options and options.continuous_usage_stats)
        self._named_stops = frozenset(body.stop_token_ids or ())

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """The answer of a request without stream."""
        choices = []
        for delta in deltas:
            self._usage.see(delta)
            choices.append(
                {
                    "index": delta.index,
                    "message": {"role": "assistant", "content": delta.text, "refusal": None},
                    "logprobs": chat_logprobs(delta.logprobs) if self._logprobs else None,
                    "finish_reason": delta.finish,
                    "stop_reason": stop_reason(delta, self._named_stops),
                }
            )
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage.report()}

    def begin(self) -> list[dict[str, Any]]:
        """The role, once per choice and in index order: clients take the first choice they see for number 0."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._n)]

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Text, then the finish reason in a chunk of its own."""
        self._usage.see(delta)
        chunks = []
        shows_logprobs = self._logprobs and bool(delta.logprobs)
        if delta.text or shows_logprobs:
            logprobs = chat_logprobs(delta.logprobs) if shows_logprobs else None
            chunks.append(self._chunk(delta.index, {"content": delta.text}, logprobs=logprobs))
        if delta.finish is not None:
            last = self._chunk(delta.index, {}, finish=delta.finish)
            last["choices"][0]["stop_reason"] = stop_reason(delta, self._named_stops)
            chunks.append(last)
        return chunks

    def end(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        if not self._final_usage:
            return []
        return [{**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage.report()}]

    def _chunk(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._running_usage:
            chunk["usage"] = self._usage.report()
        return chunk


def stop_reason(delta: Delta, named_stops: frozenset[int]) -> str | int | None:
    """The stop string or the client's own stop token that ended a choice; None for the model's end of text."""
    return delta.matched if isinstance(delta.matched, str) or delta.matched in named_stops else None


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise Rejected("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _chat_prompt(body: ChatBody) -> ChatPrompt:
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise Rejected(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.", param="continue_final_message"
        )
    if continues and body.messages[-1].role != "assistant":
        raise Rejected("'continue_final_message' needs an assistant message at the end.", param="messages")
    options = dict(body.chat_template_kwargs or {})
    if "chat_template" in options:
        raise Rejected("A chat template cannot be sent with a request.", param="chat_template_kwargs")
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
    return ChatPrompt(
        messages=[_plain(message, index) for index, message in enumerate(body.messages)],
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        template_kwargs=options,
    )


def _plain(message: ChatMessage, index: int) -> dict[str, Any]:
    """The message as templates expect it: text content, and "system" for the newer name of that role."""
    plain = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message, index),
    }
    for key in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, key)
        if value is not None:
            plain[key] = value
    return plain


def _text(message: ChatMessage, index: int) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for number, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise Rejected(
                f"Content parts of type {part.type[:50]!r} are not supported: this model reads text.",
                param=f"messages[{index}].content[{number}]",
            )
        texts.append(part.text)
    return "".join(texts)
