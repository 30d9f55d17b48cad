"""POST /v1/completions: continues prompts, which are strings or lists of token ids."""

from __future__ import annotations

from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest

from ...state import AppState
from ...structured.compiled_elsewhere import request_grammar
from ..generation import Prepared, RouteSpec
from ..logprob_options import check_num_logprobs, logprob_options
from ..sampling_params import (
    check_num_choices,
    check_prompt_tokens,
    check_stream,
    for_prompt,
    sampling_params,
    text_params,
)
from ..session_params import raw_turn
from .completions_request import DEFAULT_MAX_TOKENS, UNSUPPORTED, CompletionBody, prompts_of
from .completions_response import CompletionResponseBuilder, completion_head, prompt_part


async def prepare(state: AppState, body: CompletionBody, request_id: str) -> Prepared:
    """Validate and tokenize a completion request. Raises Rejected if a field or one of the prompts is invalid."""
    check_stream(body)
    reader, n = state.prompts, body.n or 1
    text, listed = text_params(body), prompts_of(body)
    check_num_choices(len(listed), n)
    options = logprob_options(body, ("max_tokens", body.max_tokens), logprobs=body.logprobs, echo=bool(body.echo))
    sampling = sampling_params(body, reader, logprobs=options.logprobs, prompt_logprobs=options.engine_prompt_logprobs)
    session = await raw_turn(body, reader, listed, n=n, max_tokens=None if state.clamps_all else body.max_tokens)
    marks = body.add_special_tokens is not False
    prompts = [await reader.text_or_ids(prompt, "prompt", add_special_tokens=marks) for prompt in listed]
    check_prompt_tokens(prompts, n)
    check_num_logprobs(options, prompts, n)
    limits = [_limit(state, body, len(prompt)) for prompt in prompts]
    request = PreparedRequest(
        prompts=prompts,
        sampling=[for_prompt(sampling, max_tokens=limit, seed=body.seed) for limit in limits],
        text=text,
        n=n,
        priority=body.priority or 0,
        namespace=body.namespace,
        session=session,
        grammar=await request_grammar(state.structured, body),
    )
    parts = [prompt_part(prompt, tokens, reader, body, options) for prompt, tokens in zip(listed, prompts, strict=True)]
    head = completion_head(request_id, state.model_name)
    return request, CompletionResponseBuilder(head, body, request, options, parts)


def _limit(state: AppState, body: CompletionBody, prompt_len: int) -> int:
    reader, wanted = state.prompts, body.max_tokens
    if state.clamps_all:
        wanted = reader.clamped(prompt_len, wanted)
    return reader.max_tokens(prompt_len, wanted, default=DEFAULT_MAX_TOKENS)


COMPLETIONS = RouteSpec("Answer one text completion.", CompletionBody, UNSUPPORTED, prepare)
