"""How the answers to a chat request are read: which marks to look for, and what becomes of the reasoning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ebbtide.grammar import Preface

from ...parsers.chat_template_profile import ChatTemplateProfile
from ...parsers.output_parser import ReadingPlan, Reasoning
from ...parsers.reasoning import ReasoningForm, opened_by
from ...parsers.tool_fields import ToolUse
from ...parsers.tools.forced import one_call, only_calls
from ...parsers.tools.stream_scanner import Scan, Steps
from .chat_request import ChatBody, ChatMessage


def chat_plan(
    body: ChatBody, use: ToolUse | None, profile: ChatTemplateProfile, ending: str, pieces: Sequence[bytes]
) -> ReadingPlan:
    """The plan for a request whose prompt ends with ``ending``. pieces: every token id's bytes."""
    form = profile.reasoning
    return ReadingPlan(
        reasoning=form,
        opened=form is not None and _opened(form, body, ending),
        shows=_shows(body),
        read_calls=None if use is None else _reader(use, profile),
        max_calls=None if use is None else use.max_calls,
        pieces=pieces,
    )


def preface(plan: ReadingPlan, body: ChatBody, ending: str) -> Preface | None:
    """The reasoning that may stand in front of a constraint; None when there can be none any more."""
    form = plan.reasoning
    if form is None:
        return None
    if plan.opened:
        return Preface(form.closes)
    past = body.continue_final_message or ending.rstrip().endswith(form.closes)
    return None if past else Preface(form.closes, form.opens)


def shown_marks(use: ToolUse | None, profile: ChatTemplateProfile) -> tuple[str, ...]:
    """The texts that must reach the reader even if they are control tokens."""
    reasoning = () if profile.reasoning is None else (profile.reasoning.opens, profile.reasoning.closes)
    return reasoning if use is None else (*reasoning, *profile.tool_format.markers)


def _reader(use: ToolUse, profile: ChatTemplateProfile) -> Callable[[Scan], Steps[None]]:
    if use.named is not None:
        return partial(one_call, name=use.named)
    if use.required:
        return partial(only_calls, names=use.schemas)
    read = profile.tool_format.read
    return lambda scan: read(scan, use.schemas)


def _shows(body: ChatBody) -> Reasoning:
    if body.separate_reasoning is False:
        return Reasoning.IN_TEXT
    if body.include_reasoning is False:
        return Reasoning.LEFT_OUT
    return Reasoning.AT_ONCE if body.stream_reasoning is False else Reasoning.SHOWN


def _opened(form: ReasoningForm, body: ChatBody, ending: str) -> bool:
    """Whether the answer begins within the reasoning: the template opened it, or the message that it goes on with."""
    if not body.continue_final_message:
        return opened_by(form, ending)
    written = _written(body.messages[-1])
    return written.rfind(form.opens) > written.rfind(form.closes)


def _written(message: ChatMessage) -> str:
    content = message.content or ""
    return content if isinstance(content, str) else "".join(part.text or "" for part in content)
