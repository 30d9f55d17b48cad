"""The response of POST /v1/completions: one text per choice, complete or in chunks, preceded by the prompt if
requested.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ebbtide.messages import TextAlternative, TextLogprob
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.prompts import PromptReader
from ebbtide.tokenizer_mgr.response_stream import Delta

from ...http.streaming import CHAT_FRAMING
from ..echo import Echo, echo_of_ids, echo_of_text, incomplete_character
from ..generation import stop_reason
from ..logprob_options import LogprobOptions
from ..logprobs import CompletionLogprobs, Lists, echoed_logprobs, joined_lists, prompt_logprobs
from ..usage import StreamedUsage, UsageCount
from .completions_request import CompletionBody

LONGEST_CHARACTER = 4  # maximum number of bytes, and therefore of tokens, of a UTF-8 character


@dataclass(slots=True)
class PromptPart:
    """Data about one prompt that the response may contain.

    Attributes:
        first: the first prompt token, which has no log-probability
        incomplete: see CompletionLogprobs
        hidden: see CompletionLogprobs
        echo: the echo of the prompt; None if the response does not repeat the prompt
        logprobs: log-probabilities of all prompt tokens except the first, set by the first delta
    """

    tokens: list[int]
    first: TextAlternative
    incomplete: bytes
    hidden: Collection[int]
    echo: Echo | None = None
    logprobs: list[TextLogprob] = field(default_factory=list)


class CompletionResponseBuilder:
    """Builds one response of the completions API, complete or in chunks."""

    framing = CHAT_FRAMING

    def __init__(
        self,
        head: dict[str, Any],
        body: CompletionBody,
        request: PreparedRequest,
        options: LogprobOptions,
        prompts: list[PromptPart],
    ) -> None:
        self._head = head
        self._choices = [_Choice(prompt, options) for prompt in prompts for _ in range(request.n)]
        self._usage = UsageCount(request)
        self._streamed_usage = StreamedUsage(self._usage, body.stream_options)
        self._stop_token_ids = frozenset(body.stop_token_ids or ())

    def whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return the response to a non-streaming request."""
        choices = []
        for delta in deltas:
            self._usage.add(delta)
            choices.append(self._choice(delta, self._choices[delta.index].fields(delta)))
        return {**self._head, "choices": choices, "usage": self._usage.report()}

    def first_chunks(self) -> list[dict[str, Any]]:
        """For a single choice, return no chunk.

        For several choices, return an empty chunk for each, so that clients see choice 0 first.
        """
        if len(self._choices) == 1:
            return []
        return [self._chunk(Delta(index), {"text": "", "logprobs": None}) for index in range(len(self._choices))]

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """Return a chunk with the new output and, at the end, the finish reason; no chunk if there is neither."""
        self._usage.add(delta)
        fields = self._choices[delta.index].fields(delta)
        lists = fields["logprobs"]
        is_shown = fields["text"] or delta.finish is not None or (lists and lists["tokens"]) or len(fields) > 2
        return [self._chunk(delta, fields)] if is_shown else []

    def last_chunks(self) -> list[dict[str, Any]]:
        """Return the usage chunk if it was requested, else no chunk."""
        return self._streamed_usage.last_chunk(self._head)

    def _chunk(self, delta: Delta, fields: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "choices": [self._choice(delta, fields)], **self._streamed_usage.in_chunk()}

    def _choice(self, delta: Delta, fields: dict[str, Any]) -> dict[str, Any]:
        return {
            "index": delta.index,
            **fields,
            "finish_reason": delta.finish,
            "stop_reason": stop_reason(delta, self._stop_token_ids),
        }


class _Choice:
    """Builds the fields of one choice. The fields for the first delta include the requested data about the prompt."""

    def __init__(self, prompt: PromptPart, options: LogprobOptions) -> None:
        self._prompt = prompt
        self._options = options
        self._begun = False
        self._logprobs: CompletionLogprobs | None = None
        if options.logprobs is not None:
            offset = len(prompt.echo.text) if prompt.echo is not None else 0
            self._logprobs = CompletionLogprobs(
                options.name, offset=offset, incomplete=prompt.incomplete, hidden=prompt.hidden
            )

    def fields(self, delta: Delta) -> dict[str, Any]:
        """Return the text, the logprobs and the other requested fields."""
        self._prompt.logprobs += delta.prompt
        text = delta.text
        lists = None if self._logprobs is None else self._logprobs.next_lists(delta.logprobs)
        more: dict[str, Any] = {"token_ids": delta.tokens} if self._options.token_ids else {}
        if not self._begun:
            self._begun = True
            more |= self._of_prompt()
            if self._prompt.echo is not None:
                text = self._prompt.echo.text + text
                lists = None if lists is None else joined_lists(self._echoed(self._prompt.echo), lists)
        return {"text": text, "logprobs": lists, **more}

    def _of_prompt(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._options.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_logprobs(self._prompt.logprobs, self._options.prompt_logprobs)
        if self._options.prompt_ids:
            more["prompt_token_ids"] = self._prompt.tokens
        return more

    def _echoed(self, echo: Echo) -> Lists:
        prompt, options = self._prompt, self._options
        num_top = options.logprobs or 0
        return echoed_logprobs(prompt.first, prompt.logprobs, echo.offsets, num_top=num_top, name=options.name)


def prompt_part(
    prompt: str | list[Any], tokens: list[int], reader: PromptReader, body: CompletionBody, options: LogprobOptions
) -> PromptPart:
    """Return the data about a prompt that is known before the engine has computed anything.

    prompt: the prompt as the client sent it: a string or token ids.
    """
    vocabulary, raw = reader.vocabulary, reader.vocabulary.piece(tokens[0])
    hidden = () if body.skip_special_tokens is False else reader.control_ids
    part = PromptPart(
        tokens=tokens,
        first=TextAlternative(raw.decode("utf-8", "replace"), raw, 0.0, tokens[0]),
        incomplete=incomplete_character(tokens[-LONGEST_CHARACTER:], vocabulary),
        hidden=hidden,
    )
    if options.echo and isinstance(prompt, str):
        part.echo = echo_of_text(prompt, tokens, vocabulary)
    elif options.echo:
        part.echo = echo_of_ids(tokens, vocabulary, hidden=hidden, is_complete=body.max_tokens == 0)
    return part


def completion_head(request_id: str, model: str) -> dict[str, Any]:
    """Return the fields that the response and each chunk of it have in common."""
    return {"id": f"cmpl-{request_id}", "object": "text_completion", "created": int(time.time()), "model": model}
