"""Creates the parser configuration of a chat request: the markers to look for, and the form in which reasoning is
returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ebbtide.grammar import ReasoningPrefix

from ...parsers.chat_template_profile import ChatTemplateProfile
from ...parsers.output_parser import ParserConfig, ReasoningMode
from ...parsers.reasoning import ReasoningFormat, prompt_opens_reasoning
from ...parsers.tool_fields import ToolOptions
from ...parsers.tools.forced import one_call, only_calls
from ...parsers.tools.stream_scanner import ParserCoroutine, StreamScanner
from .chat_request import ChatBody, ChatMessage


def build_parser_config(
    body: ChatBody, options: ToolOptions | None, profile: ChatTemplateProfile, ending: str, pieces: Sequence[bytes]
) -> ParserConfig:
    """Return the parser configuration of a request.

    ending: the text at the end of the prompt.
    pieces: the bytes of each token id.
    """
    form = profile.reasoning
    return ParserConfig(
        reasoning=form,
        starts_in_reasoning=form is not None and _starts_in_reasoning(form, body, ending),
        reasoning_mode=_reasoning_mode(body),
        parse_calls=None if options is None else _call_parser(options, profile),
        max_calls=None if options is None else options.max_calls,
        pieces=pieces,
    )


def reasoning_prefix(config: ParserConfig, body: ChatBody, ending: str) -> ReasoningPrefix | None:
    """Return the reasoning prefix that constrained output may have; None if no reasoning can precede the output."""
    form = config.reasoning
    if form is None:
        return None
    if config.starts_in_reasoning:
        return ReasoningPrefix(form.closes)
    past = body.continue_final_message or ending.rstrip().endswith(form.closes)
    return None if past else ReasoningPrefix(form.closes, form.opens)


def shown_marks(options: ToolOptions | None, profile: ChatTemplateProfile) -> tuple[str, ...]:
    """Return the markers that the parser needs; they must be decoded even if they are control tokens."""
    reasoning = () if profile.reasoning is None else (profile.reasoning.opens, profile.reasoning.closes)
    return reasoning if options is None else (*reasoning, *profile.tool_format.markers)


def _call_parser(
    options: ToolOptions, profile: ChatTemplateProfile
) -> Callable[[StreamScanner], ParserCoroutine[None]]:
    if options.named is not None:
        return partial(one_call, name=options.named)
    if options.required:
        return partial(only_calls, names=options.schemas)
    read = profile.tool_format.read
    return lambda scanner: read(scanner, options.schemas)


def _reasoning_mode(body: ChatBody) -> ReasoningMode:
    if body.separate_reasoning is False:
        return ReasoningMode.INLINE
    if body.include_reasoning is False:
        return ReasoningMode.OMITTED
    return ReasoningMode.WHEN_COMPLETE if body.stream_reasoning is False else ReasoningMode.SHOWN


def _starts_in_reasoning(form: ReasoningFormat, body: ChatBody, ending: str) -> bool:
    """Return True if the output starts inside a reasoning block that the template or the continued message opened."""
    if not body.continue_final_message:
        return prompt_opens_reasoning(form, ending)
    written = _written(body.messages[-1])
    return written.rfind(form.opens) > written.rfind(form.closes)


def _written(message: ChatMessage) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "".join(part.text or "" for part in content)
