"""The answer of POST /v1/chat/completions: one message per choice, whole or in chunks."""

from __future__ import annotations

import time
from typing import Any

from ebbtide.tokenizer_mgr.answer import Delta, Order

from .fields import ChatBody
from .generation import stop_reason
from .logprobs import chat_logprobs
from .usage import UsageCount


class ChatShape:
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
