"""Prepares chat requests for the scheduler: renders and tokenizes the prompt, and compiles the grammar.

Every API whose requests can be translated to a ``ChatBody`` uses this module, which depends on none of these APIs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import structs

from ebbtide.errors import Rejected
from ebbtide.grammar import ReasoningPrefix
from ebbtide.messages import SessionTurn
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.session_turns import EncodedTurn

from ...parsers.output_parser import ParserConfig
from ...parsers.tool_fields import ToolOptions, tool_options
from ...state import AppState
from ...structured.compiled_elsewhere import request_grammar
from ...structured.tool_grammar import calls_alternative, tool_constraint
from ..logprob_options import LogprobOptions, check_num_logprobs, logprob_options
from ..sampling_params import check_prompt_tokens, for_prompt, sampling_params, text_params
from ..session_params import check_one_choice, session_turn
from .chat_prompt import chat_prompt, num_messages
from .chat_request import ChatBody
from .parser_config import build_parser_config, reasoning_prefix, shown_marks

TOOL_PATH = re.compile(r"tools\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat request that is ready for the scheduler.

    Attributes:
        parser_config: the configuration of the output parser
        options: the log-probabilities and token ids that the response includes
    """

    request: PreparedRequest
    parser_config: ParserConfig
    options: LogprobOptions

    @property
    def prompt(self) -> list[int]:
        """The token ids of the prompt. A chat request has exactly one prompt."""
        return self.request.prompts[0]


async def prepare_chat(state: AppState, body: ChatBody, *, clamp: bool) -> PreparedChat:
    """Validate and tokenize a chat request. Raises Rejected if a field is invalid or the prompt is too long.

    clamp: True to reduce max_tokens if prompt and output would exceed the context length, False to raise Rejected.
    """
    reader = state.prompts
    tools = tool_options(body)
    text = text_params(body)
    limit = ("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        limit = ("max_completion_tokens", body.max_completion_tokens)
    options = logprob_options(body, limit, logprobs=_num_logprobs(body))
    sampling = sampling_params(body, reader, logprobs=options.logprobs, prompt_logprobs=options.engine_prompt_logprobs)
    turn, session = await _tokenize(state, body, tools, context_limit=clamp or limit[1] is None)
    check_prompt_tokens([turn.prompt], body.n or 1, "messages")
    check_num_logprobs(options, [turn.prompt], body.n or 1)
    if clamp:
        limit = (limit[0], reader.clamped(turn.shortest, limit[1]))
    max_tokens = reader.max_tokens(turn.shortest, limit[1], name=limit[0])
    sampling = for_prompt(sampling, max_tokens=max_tokens, seed=body.seed)
    ending = reader.ending(turn.prompt or turn.continuation)
    parser_config = build_parser_config(body, tools, state.profile, ending, reader.pieces)
    request = PreparedRequest(
        prompts=[turn.prompt],
        sampling=[sampling],
        text=structs.replace(text, shown_ids=reader.special_ids(shown_marks(tools, state.profile))),
        n=body.n or 1,
        priority=body.priority or 0,
        namespace=body.namespace,
        session=session,
        grammar=await _grammar(state, body, tools, reasoning_prefix(parser_config, body, ending)),
    )
    return PreparedChat(request, parser_config, options)


async def num_prompt_tokens(state: AppState, body: ChatBody) -> int:
    """Return the number of tokens in the prompt of a chat request. It may exceed the context length.

    Raises Rejected if the messages or the tools are invalid.
    """
    state.prompts.check_num_messages(num_messages(body))
    return len(await state.prompts.chat(chat_prompt(body, tool_options(body), state.profile)))


@contextmanager
def tools_named(paths: Sequence[str]) -> Iterator[None]:
    """In errors raised in the block, replace ``tools[i]`` with ``paths[i]``, the field that defines function i."""
    try:
        yield
    except Rejected as error:
        found = TOOL_PATH.match(error.param or "")
        if found is not None and int(found[1]) < len(paths):
            error.message = error.message.replace(f"'{found[0]}'", f"'{paths[int(found[1])]}'")
            error.param = paths[int(found[1])] + (error.param or "")[found.end() :]
        raise


async def _grammar(state: AppState, body: ChatBody, tools: ToolOptions | None, prefix: ReasoningPrefix | None) -> str:
    """Return the value of ``PreparedRequest.grammar``.

    This is the grammar of the required tool call, else that of the body's constraint; "" if there is neither. If
    ``prefix`` is given, the grammar accepts reasoning before the constrained output.
    """
    structured, form = state.structured, state.profile.tool_format.form
    if tools is None or not tools.required:
        alternative = "" if tools is None or form is None else calls_alternative(tools, form, structured.mark)
        return await request_grammar(structured, body, prefix=prefix, alternative=alternative)
    # A response format is ignored here, because it constrains text and the output consists of tool calls only.
    if any(constraint is not None for constraint in (body.regex, body.ebnf, body.grammar, body.structured_outputs)):
        raise Rejected("A required tool call cannot be combined with another constraint.", param="tool_choice")
    return await structured.compile(tool_constraint(tools), prefix=prefix)


async def _tokenize(
    state: AppState, body: ChatBody, tools: ToolOptions | None, *, context_limit: bool
) -> tuple[EncodedTurn, SessionTurn | None]:
    """Return the token ids of the messages, and the session turn, if the request continues a session."""
    state.prompts.check_num_messages(num_messages(body))
    chat = chat_prompt(body, tools, state.profile)
    session = session_turn(body)
    if session is None:
        return EncodedTurn(await state.prompts.chat(chat), []), None
    check_one_choice(1, body.n or 1)
    turn = await state.prompts.chat_turn(chat, chat_prompt(body, tools, state.profile, is_continuation=True))
    session = structs.replace(
        session, continuation=turn.continuation, head=turn.head, refusal=turn.refusal, context_limit=context_limit
    )
    return turn, session


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise Rejected("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
