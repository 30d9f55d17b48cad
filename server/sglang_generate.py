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
from ebbtide.tokenizer_mgr.answer import Order
from ebbtide.tokenizer_mgr.prompts import PromptReader

from . import fields
from .fields import GenerationFields
from .generation import Api, Work, generate
from .replies import Framing
from .session_fields import check_one_choice, session_turn
from .sglang_fields import (
    DEFAULT_MAX_TOKENS,
    UNSUPPORTED,
    GenerateBody,
    SamplingFields,
    constraint_of,
    openai_fields,
    per_prompt,
    prompts_of,
)
from .sglang_shape import GenerateShape, ShapeOptions, choice_names
from .state import AppState
from .structured import StructuredOutput


@dataclass(frozen=True, slots=True)
class GenerateRoute:
    """The route, bound to what it works with."""

    state: AppState

    async def create(self, request: Request) -> Response:
        """Answer one request in SGLang's own form."""
        return await generate(request, self.state, Api(GenerateBody, UNSUPPORTED, prepare))


async def prepare(state: AppState, body: GenerateBody, request_id: str) -> Work:
    """What a request comes to; nothing of a batch runs unless all of it can. Raises Rejected."""
    reader, listed = state.prompts, prompts_of(body)
    wanted = _wanted(body, len(listed))
    n = wanted[0].n or 1
    fields.check_num_choices(len(listed), n)
    logprobs = _num_logprobs(body, len(listed))
    for one, count in zip(wanted, logprobs, strict=True):
        fields.sampling_params(one, reader, max_tokens=2**31, logprobs=count)
    names = choice_names(body.rid, request_id, len(listed), n)
    session = await _session(reader, body, listed, n)
    if session is not None:
        # Turns are called by their names later, and a request id may repeat.
        names = names if body.rid is not None else [secrets.token_hex(16)]
        session = structs.replace(session, turn=names[0], context_limit=wanted[0].max_tokens is None)
    prompts = [await _read(reader, prompt) for prompt in listed]
    order = Order(
        prompts=prompts,
        sampling=[_sampling(reader, *one) for one in zip(prompts, wanted, logprobs, strict=True)],
        text=_common_text(wanted),
        n=n,
        priority=body.priority or 0,
        namespace=fields.namespace(wanted[0]),
        session=session,
        grammar=await _common_grammar(state.structured, body, len(listed)),
    )
    options = ShapeOptions(
        names=names,
        num_logprobs=[count for count in logprobs for _ in range(n)],
        token_text=bool(body.return_text_in_logprobs),
        is_list=n > 1 or isinstance(body.text, list) or bool(body.input_ids and isinstance(body.input_ids[0], list)),
        incremental=state.config.incremental_streaming_output,
    )
    shape = GenerateShape(order, options, state.manager.clock)
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


def _num_logprobs(body: GenerateBody, count: int) -> list[int | None]:
    """How many alternatives each prompt's output tokens have; None: no log-probabilities. Raises Rejected."""
    asked = per_prompt(body.return_logprob, False, count, "return_logprob")
    tops = per_prompt(body.top_logprobs_num, 0, count, "top_logprobs_num")
    for start, wants in zip(per_prompt(body.logprob_start_len, -1, count, "logprob_start_len"), asked, strict=True):
        if wants and start != -1:
            raise Rejected(
                "'logprob_start_len' other than -1 asks for log-probabilities of the prompt, which are not supported.",
                param="logprob_start_len",
            )
    return [top if wants else None for top, wants in zip(tops, asked, strict=True)]


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


def _sampling(
    reader: PromptReader, prompt: list[int], wanted: GenerationFields, logprobs: int | None
) -> SamplingParams:
    max_tokens = reader.max_tokens(len(prompt), wanted.max_tokens, default=DEFAULT_MAX_TOKENS)
    return fields.sampling_params(wanted, reader, max_tokens=max_tokens, logprobs=logprobs)
