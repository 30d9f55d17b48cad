"""POST /v1/completions: texts or token ids in, their continuation out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.messages import SessionTurn
from ebbtide.tokenizer_mgr.answer import Delta, Order
from ebbtide.tokenizer_mgr.prompts import PromptReader

from . import fields
from .fields import CompletionBody
from .generation import Api, Work, generate, stop_reason
from .logprobs import CompletionLogprobs
from .session_fields import check_one_choice, session_turn
from .state import AppState
from .usage import UsageCount

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CompletionRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one text completion."""
        return await generate(request, self.state, Api(CompletionBody, fields.COMPLETION_UNSUPPORTED, prepare))


async def prepare(state: AppState, body: CompletionBody, request_id: str) -> Work:
    """What a completion request comes to; nothing of a batch runs unless all of it can. Raises Rejected."""
    fields.check_stream(body)
    reader = state.prompts
    text = fields.text_params(body)
    listed = _listed(body.prompt)
    n = body.n or 1
    fields.check_num_choices(len(listed), n)
    fields.sampling_params(body, reader, max_tokens=2**31, logprobs=body.logprobs)
    session = await _session(reader, body, listed)
    prompts = [await _read(reader, prompt) for prompt in listed]
    sampling = []
    for prompt in prompts:
        max_tokens = reader.max_tokens(len(prompt), body.max_tokens, default=DEFAULT_MAX_TOKENS)
        sampling.append(fields.sampling_params(body, reader, max_tokens=max_tokens, logprobs=body.logprobs))
    order = Order(
        prompts=prompts,
        sampling=sampling,
        text=text,
        n=n,
        priority=body.priority or 0,
        namespace=fields.namespace(body),
        session=session,
        grammar=await state.structured.grammar_of(body),
    )
    return Work(order, _CompletionShape(request_id, state.model_name, body, order))


class _CompletionShape:
    """One answer in the shape of the completions API, whole or in chunks."""

    def __init__(self, request_id: str, model: str, body: CompletionBody, order: Order) -> None:
        self._head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        asked = body.logprobs is not None
        self._num_choices = order.num_choices
        self._logprobs = {i: CompletionLogprobs() for i in range(order.num_choices if asked else 0)}
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
            choices.append(self._choice(delta, self._logprobs_of(delta)))
        return {**self._head, "choices": choices, "usage": self._usage.report()}

    def begin(self) -> list[dict[str, Any]]:
        """Nothing for one choice; else an empty chunk of each, so that choice 0 comes first."""
        if self._num_choices == 1:
            return []
        return [self._chunk(Delta(index), None) for index in range(self._num_choices)]

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """One chunk with the text and, at the end, the finish reason."""
        self._usage.see(delta)
        shows = delta.text or delta.finish is not None or (delta.logprobs and self._logprobs)
        return [self._chunk(delta, self._logprobs_of(delta))] if shows else []

    def end(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        return [{**self._head, "choices": [], "usage": self._usage.report()}] if self._final_usage else []

    def _chunk(self, delta: Delta, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._choice(delta, logprobs)]}
        if self._running_usage:
            chunk["usage"] = self._usage.report()
        return chunk

    def _choice(self, delta: Delta, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "index": delta.index,
            "text": delta.text,
            "logprobs": logprobs,
            "finish_reason": delta.finish,
            "stop_reason": stop_reason(delta, self._named_stops),
        }

    def _logprobs_of(self, delta: Delta) -> dict[str, Any] | None:
        shown = self._logprobs.get(delta.index)
        return shown.take(delta.logprobs) if shown is not None else None


def _listed(prompt: str | list[Any]) -> list[str | list[Any]]:
    """The prompts one by one: a text, or a list of what should be token ids. Raises Rejected."""
    if isinstance(prompt, str) or (prompt and all(type(entry) is int for entry in prompt)):
        listed = [prompt]
    else:
        listed = prompt
    kinds = {type(entry) for entry in listed}
    if kinds not in ({str}, {list}):
        raise Rejected(
            "'prompt' must be a text, a list of texts, a list of token ids, or a list of such lists.", param="prompt"
        )
    if not all(listed):
        raise Rejected("'prompt' is empty, or has an empty entry.", param="prompt")
    return listed


async def _session(reader: PromptReader, body: CompletionBody, listed: list[str | list[Any]]) -> SessionTurn | None:
    """The session that the prompt goes on with, if it does. Raises Rejected."""
    session = session_turn(body)
    if session is None:
        return None
    check_one_choice(len(listed), body.n or 1)
    continuation = await reader.continuation(listed[0])
    return structs.replace(session, continuation=continuation, context_limit=body.max_tokens is None)


async def _read(reader: PromptReader, prompt: str | list[Any]) -> list[int]:
    return await reader.text(prompt) if isinstance(prompt, str) else reader.checked_ids(prompt, "prompt")
