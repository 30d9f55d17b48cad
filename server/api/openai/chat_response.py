"""The response of POST /v1/chat/completions: one message per choice, complete or in chunks."""

from __future__ import annotations

import time
from typing import Any

from ebbtide.tokenizer_mgr.response_stream import Delta

from ...http.streaming import CHAT_FRAMING
from ...parsers.content_parts import ContentPart, Kind
from ...parsers.output_parser import OutputParsers, ParsedDelta, join_calls
from ..chat.chat_request import ChatBody
from ..chat.prepared_chat import PreparedChat
from ..generation import stop_reason
from ..logprob_options import ChatTokens
from ..usage import StreamedUsage, UsageCount


class ChatResponseBuilder:
    """Builds one response of the chat API, complete or in chunks."""

    framing = CHAT_FRAMING

    def __init__(self, request_id: str, model: str, body: ChatBody, chat: PreparedChat) -> None:
        self._head = {"id": f"chatcmpl-{request_id}", "created": int(time.time()), "model": model}
        self._n = chat.request.n
        self._tokens = ChatTokens(chat.options, chat.prompt)
        self._parsers = OutputParsers(chat.parser_config)
        self._usage = UsageCount(chat.request)
        self._streamed_usage = StreamedUsage(self._usage, body.stream_options)
        self._stop_token_ids = frozenset(body.stop_token_ids or ())

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return the response to a non-streaming request."""
        choices = []
        for delta in deltas:
            parsed = self._parse(delta)
            choices.append(
                {
                    "index": delta.index,
                    "message": _message(parsed),
                    "logprobs": self._tokens.logprobs(delta),
                    "finish_reason": parsed.finish,
                    "stop_reason": stop_reason(delta, self._stop_token_ids),
                    **self._tokens.of_choice(delta),
                }
            )
        whole = {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage.report()}
        return whole | self._tokens.of_prompt() | self._tokens.prompt_logprobs(deltas[0])

    def first_chunks(self) -> list[dict[str, Any]]:
        """Return one chunk with the role per choice, in index order: clients assume that choice 0 comes first."""
        roles = [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._n)]
        roles[0] |= self._tokens.of_prompt()
        return roles

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return one chunk per part of the output, then one with the finish reason.

        The first chunk contains the log-probabilities and token ids; its text is empty if all text is held back.
        """
        parsed = self._parse(delta)
        parts = [_delta(part) for part in parsed.parts]
        logprobs = self._tokens.logprobs(delta) if delta.logprobs else None
        of_choice, scores = self._tokens.of_choice(delta), self._tokens.prompt_logprobs(delta)
        if (logprobs or of_choice or scores) and not parts:
            parts = [_reasoning("") if parsed.kind is Kind.REASONING else {"content": ""}]
        chunks = [self._chunk(delta.index, part, logprobs=None if at else logprobs) for at, part in enumerate(parts)]
        if chunks:
            chunks[0]["choices"][0] |= of_choice
            chunks[0] |= scores
        if parsed.finish is not None:
            last = self._chunk(delta.index, {}, finish=parsed.finish)
            last["choices"][0]["stop_reason"] = stop_reason(delta, self._stop_token_ids)
            chunks.append(last)
        return chunks

    def last_chunks(self) -> list[dict[str, Any]]:
        """Return the usage chunk if it was requested, else no chunk."""
        return self._streamed_usage.last_chunk({**self._head, "object": "chat.completion.chunk"})

    def _parse(self, delta: Delta) -> ParsedDelta:
        parsed = self._parsers.parse(delta)
        self._usage.add(delta, parsed.reasoning_tokens)
        return parsed

    def _chunk(
        self, index: int, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return chunk | self._streamed_usage.in_chunk()


def _message(parsed: ParsedDelta) -> dict[str, Any]:
    """Return the assistant message. The content is null only if the message has tool calls."""
    text, reasoning = parsed.text_of(Kind.TEXT), parsed.text_of(Kind.REASONING)
    calls = join_calls(parsed.parts)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
    if reasoning:
        message |= _reasoning(reasoning)
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _delta(part: ContentPart) -> dict[str, Any]:
    """Return a part as the ``delta`` of a chunk.

    The id, type and name of a call are sent only once, because clients concatenate them.
    """
    if part.kind is Kind.TEXT:
        return {"content": part.text}
    if part.kind is Kind.REASONING:
        return _reasoning(part.text)
    if part.name is None:
        return {"tool_calls": [{"index": part.call, "function": {"arguments": part.text}}]}
    function = {"name": part.name, "arguments": ""}
    return {"tool_calls": [{"index": part.call, "id": part.id, "type": "function", "function": function}]}


def _reasoning(text: str) -> dict[str, Any]:
    """Return the reasoning under both field names that clients use."""
    return {"reasoning_content": text, "reasoning": text}
