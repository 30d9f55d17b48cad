"""Chat requests made ready for the scheduler: the prompt rendered and tokenized, the constraint compiled.

Serves every API whose requests can be written as a ``ChatBody``; knows none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from msgspec import structs

from ebbtide.errors import Rejected
from ebbtide.grammar import ReasoningPrefix
from ebbtide.messages import SessionTurn
from ebbtide.tokenizer_mgr.prepared_request import PreparedRequest
from ebbtide.tokenizer_mgr.session_turns import Turn

from ...parsers.output_parser import ParserConfig
from ...parsers.tool_fields import ToolUse, tool_use
from ...state import AppState
from ...structured.tool_grammar import calls_instead, tool_constraint
from .. import fields
from ..logprob_options import LogprobOptions, check_named, logprob_options
from ..session_request import check_one_choice, session_turn
from .chat_prompt import chat_prompt
from .chat_request import ChatBody
from .parser_config import build_parser_config, reasoning_prefix, shown_marks


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """What a chat comes to: what the engine is told, and how its answers are read."""

    order: PreparedRequest
    parser_config: ParserConfig
    wishes: LogprobOptions


async def prepare_chat(state: AppState, body: ChatBody) -> PreparedChat:
    """The same for every API whose requests can be written as a chat's body. Raises Rejected."""
    reader = state.prompts
    use = tool_use(body)
    text = fields.text_params(body)
    limit = ("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        limit = ("max_completion_tokens", body.max_completion_tokens)
    wishes = logprob_options(body, limit, logprobs=_num_logprobs(body))
    sampling_for = partial(
        fields.sampling_params, body, reader, logprobs=wishes.logprobs, prompt_logprobs=wishes.scored
    )
    # Every field is looked at once before the costly part, and again with the true limit after it.
    sampling_for(max_tokens=2**31)
    turn, session = await _read(state, body, use, context_limit=limit[1] is None)
    check_named(wishes, [turn.prompt], body.n or 1)
    max_tokens = reader.max_tokens(turn.shortest, limit[1], name=limit[0])
    ending = reader.ending(turn.prompt or turn.continuation)
    parser_config = build_parser_config(body, use, state.profile, ending, reader.pieces)
    order = PreparedRequest(
        prompts=[turn.prompt],
        sampling=[sampling_for(max_tokens=max_tokens)],
        text=structs.replace(text, shown_ids=reader.special_ids(shown_marks(use, state.profile))),
        n=body.n or 1,
        priority=body.priority or 0,
        namespace=fields.namespace(body),
        session=session,
        grammar=await _grammar(state, body, use, reasoning_prefix(parser_config, body, ending)),
    )
    return PreparedChat(order, parser_config, wishes)


async def _grammar(
    state: AppState, body: ChatBody, use: ToolUse | None, reasoning_prefix: ReasoningPrefix | None
) -> str:
    """``PreparedRequest.grammar``: that of a required call, else the constraint of the body, after the reasoning."""
    structured, form = state.structured, state.profile.tool_format.form
    if use is None or not use.required:
        instead = "" if use is None or form is None else calls_instead(use, form, structured.mark)
        return await structured.grammar_of(body, after=reasoning_prefix, instead=instead)
    # A response format is that of an answer in words, which there will not be.
    if any(constraint is not None for constraint in (body.regex, body.ebnf, body.structured_outputs)):
        raise Rejected("A required call and another constraint exclude each other.", param="tool_choice")
    return await structured.compile(tool_constraint(use), after=reasoning_prefix)


async def _read(
    state: AppState, body: ChatBody, use: ToolUse | None, *, context_limit: bool
) -> tuple[Turn, SessionTurn | None]:
    """The messages as tokens, and the session that they go on with, if they do."""
    chat = chat_prompt(body, use, state.profile)
    session = session_turn(body)
    if session is None:
        return Turn(await state.prompts.chat(chat), []), None
    check_one_choice(1, body.n or 1)
    turn = await state.prompts.chat_turn(chat, chat_prompt(body, use, state.profile, goes_on=True))
    told = structs.replace(
        session, continuation=turn.continuation, head=turn.head, refusal=turn.refusal, context_limit=context_limit
    )
    return turn, told


def _num_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise Rejected("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
