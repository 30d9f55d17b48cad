"""POST /v1/completions: texts or token ids in, their continuation out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.messages import SessionTurn
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ...state import AppState
from ..generation import Prepared, RouteSpec, generate
from ..logprob_options import LogprobOptions, check_num_logprobs, logprob_options
from ..sampling_params import check_num_choices, check_stream, for_prompt, sampling_params, text_params
from ..session_params import check_one_choice, session_turn
from .completions_request import DEFAULT_MAX_TOKENS, UNSUPPORTED, CompletionBody, prompts_of
from .completions_response import CompletionResponseBuilder, PromptPart, completion_head, prompt_part


@dataclass(frozen=True, slots=True)
class CompletionRoute:
    """The route, bound to the application's state."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one text completion."""
        return await generate(request, self.state, RouteSpec(CompletionBody, UNSUPPORTED, prepare))


async def prepare(state: AppState, body: CompletionBody, request_id: str) -> Prepared:
    """Make a completion request ready for the scheduler: all of its prompts or none. Raises Rejected."""
    check_stream(body)
    reader, n = state.prompts, body.n or 1
    text, listed = text_params(body), prompts_of(body)
    check_num_choices(len(listed), n)
    options = logprob_options(body, ("max_tokens", body.max_tokens), logprobs=body.logprobs, echo=bool(body.echo))
    sampling = sampling_params(body, reader, logprobs=options.logprobs, prompt_logprobs=options.engine_prompt_logprobs)
    session = await _session(reader, body, listed)
    prompts = [await reader.text_or_ids(prompt, "prompt") for prompt in listed]
    check_num_logprobs(options, prompts, n)
    limits = [reader.max_tokens(len(prompt), body.max_tokens, default=DEFAULT_MAX_TOKENS) for prompt in prompts]
    request = PreparedRequest(
        prompts=prompts,
        sampling=[for_prompt(sampling, max_tokens=limit, seed=body.seed) for limit in limits],
        text=text,
        n=n,
        priority=body.priority or 0,
        namespace=body.namespace,
        session=session,
        grammar=await state.structured.grammar_of(body),
    )
    parts = [_part(reader, prompt, tokens, body, options) for prompt, tokens in zip(listed, prompts, strict=True)]
    head = completion_head(request_id, state.model_name)
    return request, CompletionResponseBuilder(head, body, request, options, parts)


async def _session(reader: PromptReader, body: CompletionBody, listed: list[str | list[Any]]) -> SessionTurn | None:
    """The session that the prompt continues, if any. Raises Rejected."""
    session = session_turn(body)
    if session is None:
        return None
    check_one_choice(len(listed), body.n or 1)
    continuation = await reader.continuation(listed[0])
    return structs.replace(session, continuation=continuation, context_limit=body.max_tokens is None)


def _part(
    reader: PromptReader, prompt: str | list[Any], tokens: list[int], body: CompletionBody, options: LogprobOptions
) -> PromptPart:
    return prompt_part(
        tokens,
        reader.vocabulary,
        options,
        text=prompt if isinstance(prompt, str) else None,
        hidden=() if body.skip_special_tokens is False else reader.control_ids,
        is_complete=body.max_tokens == 0,
    )
