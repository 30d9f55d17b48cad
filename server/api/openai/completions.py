"""POST /v1/completions: texts or token ids in, their continuation out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.messages import SessionTurn
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ...state import AppState
from .. import fields
from ..fields import CompletionBody
from ..generation import RouteSpec, Work, generate
from ..logprob_options import LogprobOptions, check_named, logprob_options
from ..session_request import check_one_choice, session_turn
from .completions_response import CompletionResponseBuilder, PromptPart, completion_head, prompt_part

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, slots=True)
class CompletionRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one text completion."""
        return await generate(request, self.state, RouteSpec(CompletionBody, fields.COMPLETION_UNSUPPORTED, prepare))


async def prepare(state: AppState, body: CompletionBody, request_id: str) -> Work:
    """What a completion request comes to; nothing of a batch runs unless all of it can. Raises Rejected."""
    fields.check_stream(body)
    reader = state.prompts
    text = fields.text_params(body)
    listed = _listed(body.prompt)
    n = body.n or 1
    fields.check_num_choices(len(listed), n)
    wishes = logprob_options(body, ("max_tokens", body.max_tokens), logprobs=body.logprobs, echo=bool(body.echo))
    sampling_for = partial(fields.sampling_params, body, reader, logprobs=body.logprobs, prompt_logprobs=wishes.scored)
    sampling_for(max_tokens=2**31)
    session = await _session(reader, body, listed)
    prompts = [await _read(reader, prompt) for prompt in listed]
    check_named(wishes, prompts, n)
    limits = [reader.max_tokens(len(prompt), body.max_tokens, default=DEFAULT_MAX_TOKENS) for prompt in prompts]
    order = PreparedRequest(
        prompts=prompts,
        sampling=[sampling_for(max_tokens=limit) for limit in limits],
        text=text,
        n=n,
        priority=body.priority or 0,
        namespace=fields.namespace(body),
        session=session,
        grammar=await state.structured.grammar_of(body),
    )
    parts = [_part(reader, prompt, tokens, body, wishes) for prompt, tokens in zip(listed, prompts, strict=True)]
    return Work(
        order, CompletionResponseBuilder(completion_head(request_id, state.model_name), body, order, wishes, parts)
    )


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


def _part(
    reader: PromptReader, prompt: str | list[Any], tokens: list[int], body: CompletionBody, wishes: LogprobOptions
) -> PromptPart:
    return prompt_part(
        tokens,
        reader.vocabulary,
        wishes,
        text=prompt if isinstance(prompt, str) else None,
        hidden=() if body.skip_special_tokens is False else reader.control_ids,
        ends=body.max_tokens == 0,
    )
