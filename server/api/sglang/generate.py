"""POST /generate, SGLang's native route: continues strings or token ids, and returns text and statistics."""

from __future__ import annotations

import secrets

from msgspec import structs

from ebbtide.errors import Rejected
from ebbtide.messages import SamplingParams, TextParams
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest

from ...state import AppState
from ...structured.compiled_elsewhere import Grammars
from ..generation import Prepared, RouteSpec
from ..generation_request import GenerationRequest
from ..param_names import params_named
from ..sampling_params import check_num_choices, check_prompt_tokens, for_prompt, sampling_params, text_params
from ..session_params import raw_turn, session_turn
from .generate_request import (
    DEFAULT_MAX_TOKENS,
    PARAM_NAMES,
    UNSUPPORTED,
    GenerateBody,
    SamplingFields,
    constraint_of,
    generation_request,
    per_prompt,
    prompts_of,
)
from .generate_response import GenerateResponseBuilder, LogprobView, ResponseOptions, choice_names


async def prepare(state: AppState, body: GenerateBody, request_id: str) -> Prepared:
    """Validate and tokenize a request. Raises Rejected if a field or one of the prompts is invalid."""
    names = PARAM_NAMES if body.input_ids is not None else PARAM_NAMES | {"prompt": "text"}
    with params_named(names):
        return await _prepare(state, body, request_id)


async def _prepare(state: AppState, body: GenerateBody, request_id: str) -> Prepared:
    reader, listed = state.prompts, prompts_of(body)
    requests = _requests(body, len(listed))
    n = requests[0].n or 1
    check_num_choices(len(listed), n)
    views = _views(body, requests)
    sampling = [
        sampling_params(request, reader, logprobs=view.top, prompt_logprobs=view.prompt_top)
        for request, view in zip(requests, views, strict=True)
    ]
    names = choice_names(body.rid, request_id, len(listed), n)
    max_tokens = None if state.clamps_all else requests[0].max_tokens
    session = await raw_turn(body, reader, listed, n=n, max_tokens=max_tokens)
    if session is not None:
        # The turn needs a unique name, because later turns refer to it and a client's request id need not be unique.
        [rid] = body.names
        names = [secrets.token_hex(16) if rid is None else rid]
        session = structs.replace(session, turn=names[0])
    prompts = [await reader.text_or_ids(prompt, "input_ids") for prompt in listed]
    check_prompt_tokens(prompts, n, "text" if body.input_ids is None else "input_ids")
    prepared = PreparedRequest(
        prompts=prompts,
        sampling=[_for_prompt(state, *one) for one in zip(prompts, sampling, requests, views, strict=True)],
        text=_common_text(requests),
        n=n,
        priority=body.priority or 0,
        namespace=requests[0].namespace,
        session=session,
        grammar=await _common_grammar(state.structured, body, len(listed)),
    )
    options = ResponseOptions(
        names=names,
        views=views,
        pieces=reader.pieces if body.return_text_in_logprobs else None,
        is_list=n > 1 or isinstance(body.text, list) or bool(body.input_ids and isinstance(body.input_ids[0], list)),
        incremental=state.config.incremental_streaming_output,
    )
    return prepared, GenerateResponseBuilder(prepared, options, state.manager.clock)


def _requests(body: GenerateBody, count: int) -> list[GenerationRequest]:
    """Return one request per prompt. Raises Rejected if ``n`` differs between the prompts."""
    listed = per_prompt(body.sampling_params, SamplingFields(), count, "sampling_params")
    requests = [generation_request(sampling, body) for sampling in listed]
    if len({one.n or 1 for one in requests}) > 1:
        raise Rejected("'n' must be the same for all prompts of a batch.", param="sampling_params")
    return requests


def _common_text(requests: list[GenerationRequest]) -> TextParams:
    texts = [text_params(request) for request in requests]
    if any(text != texts[0] for text in texts):
        raise Rejected(
            "The stop conditions and the output format must be the same for all prompts of a batch: send prompts with"
            " different 'stop', 'min_new_tokens', 'skip_special_tokens' or 'no_stop_trim' one by one.",
            param="sampling_params",
        )
    return texts[0]


async def _common_grammar(structured: Grammars, body: GenerateBody, count: int) -> str:
    listed = per_prompt(body.sampling_params, SamplingFields(), count, "sampling_params")
    constraint = constraint_of(listed[0])
    if any(constraint_of(other) != constraint for other in listed[1:]):
        raise Rejected("The constraint must be the same for all prompts of a batch.", param="sampling_params")
    return "" if constraint is None else await structured.compile(constraint)


def _views(body: GenerateBody, requests: list[GenerationRequest]) -> list[LogprobView]:
    """Return, for each prompt, which log-probabilities the response includes.

    Raises Rejected if a list does not have one entry per prompt, or if a session turn sets ``logprob_start_len``.
    """
    count = len(requests)
    wanted = per_prompt(body.return_logprob, False, count, "return_logprob")
    tops = per_prompt(body.top_logprobs_num, 0, count, "top_logprobs_num")
    starts = per_prompt(body.logprob_start_len, -1, count, "logprob_start_len")
    views = [
        LogprobView(top if is_wanted else None, start if is_wanted and start >= 0 else None)
        for is_wanted, top, start in zip(wanted, tops, starts, strict=True)
    ]
    if any(view.start is not None for view in views) and session_turn(body) is not None:
        raise Rejected("'logprob_start_len' cannot be combined with a session.", param="logprob_start_len")
    return views


def _for_prompt(
    state: AppState, prompt: list[int], sampling: SamplingParams, request: GenerationRequest, view: LogprobView
) -> SamplingParams:
    if view.start is not None and view.start > len(prompt):
        raise Rejected(
            f"'logprob_start_len' is {view.start}, but the prompt has {len(prompt)} tokens.", param="logprob_start_len"
        )
    name, wanted = "sampling_params.max_new_tokens", request.max_tokens
    if state.clamps_all:
        wanted = state.prompts.clamped(len(prompt), wanted)
    max_tokens = state.prompts.max_tokens(len(prompt), wanted, default=DEFAULT_MAX_TOKENS, name=name)
    return for_prompt(sampling, max_tokens=max_tokens, seed=request.seed)


GENERATE = RouteSpec("Generate text in the format of SGLang's native API.", GenerateBody, UNSUPPORTED, prepare)
