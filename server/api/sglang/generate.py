"""POST /generate, SGLang's own route: texts or token ids in, text and its numbers out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from ebbtide.errors import Rejected
from ebbtide.messages import SamplingParams, SessionTurn, TextParams
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.prompts import PromptReader

from ...http.streaming import Framing
from ...state import AppState
from ...structured.structured import StructuredOutput
from .. import fields
from ..fields import GenerationFields
from ..generation import RouteSpec, Work, generate
from ..session_request import check_one_choice, session_turn
from .generate_request import (
    DEFAULT_MAX_TOKENS,
    UNSUPPORTED,
    GenerateBody,
    SamplingFields,
    constraint_of,
    openai_fields,
    per_prompt,
    prompts_of,
)
from .generate_response import GenerateResponseBuilder, Look, ResponseOptions, choice_names


@dataclass(frozen=True, slots=True)
class GenerateRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one request in SGLang's own form."""
        return await generate(request, self.state, RouteSpec(GenerateBody, UNSUPPORTED, prepare))


async def prepare(state: AppState, body: GenerateBody, request_id: str) -> Work:
    """What a request comes to; nothing of a batch runs unless all of it can. Raises Rejected."""
    reader, listed = state.prompts, prompts_of(body)
    wanted = _wanted(body, len(listed))
    n = wanted[0].n or 1
    fields.check_num_choices(len(listed), n)
    looks = _looks(body, wanted)
    for one, look in zip(wanted, looks, strict=True):
        fields.sampling_params(one, reader, max_tokens=2**31, logprobs=look.top)
    names = choice_names(body.rid, request_id, len(listed), n)
    session = await _session(reader, body, listed, n)
    if session is not None:
        # Turns are called by their names later, and a request id may repeat.
        [rid] = body.names
        names = [secrets.token_hex(16) if rid is None else rid]
        session = structs.replace(session, turn=names[0], context_limit=wanted[0].max_tokens is None)
    prompts = [await _read(reader, prompt) for prompt in listed]
    order = PreparedRequest(
        prompts=prompts,
        sampling=[_sampling(reader, *one) for one in zip(prompts, wanted, looks, strict=True)],
        text=_common_text(wanted),
        n=n,
        priority=body.priority or 0,
        namespace=fields.namespace(wanted[0]),
        session=session,
        grammar=await _common_grammar(state.structured, body, len(listed)),
    )
    options = ResponseOptions(
        names=names,
        looks=looks,
        pieces=reader.pieces if body.return_text_in_logprobs else None,
        is_list=n > 1 or isinstance(body.text, list) or bool(body.input_ids and isinstance(body.input_ids[0], list)),
        incremental=state.config.incremental_streaming_output,
    )
    shape = GenerateResponseBuilder(order, options, state.manager.clock)
    return Work(order, shape, Framing(failure=shape.failed))


def _wanted(body: GenerateBody, count: int) -> list[GenerationFields]:
    """The sampling fields of each prompt. Raises Rejected when they differ where one request cannot."""
    listed = per_prompt(body.sampling_params, SamplingFields(), count, "sampling_params")
    wanted = [openai_fields(one, body) for one in listed]
    if len({one.n or 1 for one in wanted}) > 1:
        raise Rejected("'n' must be the same for all prompts of a batch.", param="sampling_params")
    return wanted


def _common_text(wanted: list[GenerationFields]) -> TextParams:
    texts = [fields.text_params(one) for one in wanted]
    if any(text != texts[0] for text in texts):
        raise Rejected(
            "What ends an answer, and how it is written, must be the same for all prompts of a batch: send prompts with"
            " different 'stop', 'min_new_tokens', 'skip_special_tokens' or 'no_stop_trim' one by one.",
            param="sampling_params",
        )
    return texts[0]


async def _common_grammar(structured: StructuredOutput, body: GenerateBody, count: int) -> str:
    listed = per_prompt(body.sampling_params, SamplingFields(), count, "sampling_params")
    constraint = constraint_of(listed[0])
    if any(constraint_of(other) != constraint for other in listed[1:]):
        raise Rejected("The constraint must be the same for all prompts of a batch.", param="sampling_params")
    return "" if constraint is None else await structured.compile(constraint)


def _looks(body: GenerateBody, wanted: list[GenerationFields]) -> list[Look]:
    """Which log-probabilities each prompt has. Raises Rejected."""
    count = len(wanted)
    asked = per_prompt(body.return_logprob, False, count, "return_logprob")
    tops = per_prompt(body.top_logprobs_num, 0, count, "top_logprobs_num")
    starts = per_prompt(body.logprob_start_len, -1, count, "logprob_start_len")
    looks = [
        Look(top if wants else None, start if wants and start >= 0 else None)
        for wants, top, start in zip(asked, tops, starts, strict=True)
    ]
    if any(look.start is not None for look in looks) and session_turn(body) is not None:
        raise Rejected("'logprob_start_len' cannot be combined with a session.", param="logprob_start_len")
    if any(one.max_tokens == 0 and look.start is None for one, look in zip(wanted, looks, strict=True)):
        raise Rejected(
            "'max_new_tokens' is 0: that is only for a look at the prompt, with 'logprob_start_len'.",
            param="sampling_params.max_new_tokens",
        )
    return looks


async def _session(
    reader: PromptReader, body: GenerateBody, listed: list[str | list[Any]], n: int
) -> SessionTurn | None:
    session = session_turn(body)
    if session is None:
        return None
    check_one_choice(len(listed), n)
    return structs.replace(session, continuation=await reader.continuation(listed[0]))


async def _read(reader: PromptReader, prompt: str | list[Any]) -> list[int]:
    return await reader.text(prompt) if isinstance(prompt, str) else reader.checked_ids(prompt, "input_ids")


def _sampling(reader: PromptReader, prompt: list[int], wanted: GenerationFields, look: Look) -> SamplingParams:
    if look.start is not None and look.start > len(prompt):
        raise Rejected(
            f"'logprob_start_len' is {look.start}, but the prompt has {len(prompt)} tokens.", param="logprob_start_len"
        )
    name = "sampling_params.max_new_tokens"
    max_tokens = reader.max_tokens(len(prompt), wanted.max_tokens, default=DEFAULT_MAX_TOKENS, name=name)
    return fields.sampling_params(
        wanted, reader, max_tokens=max_tokens, logprobs=look.top, prompt_logprobs=look.prompt_top
    )
